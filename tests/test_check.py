"""`grader check` on a made-up course: each claim holds there, and each is made to fail here."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from toy_check import write_checked_course
from toy_check_broken import BROKEN, DONE_1, DONE_3, GREET, ONE, TWO
from toy_course import edit

from grader import check_report, cli
from grader.check import check
from grader.claims.claim import KINDS, Claim, Kind
from grader.course import load_course
from grader.terminal import Style

PLAIN = Style(color=False)
QUICK: tuple[Kind, ...] = ("manifest", "overlay", "signature")


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """The made-up course, in which every claim holds."""
    return write_checked_course(tmp_path / "course")


def claims_of(course: Path, *chapters: str, only: Iterable[Kind], jobs: int = 1) -> list[Claim]:
    loaded = load_course(course)
    return check(loaded, [loaded.chapter(name) for name in chapters], only=tuple(only), jobs=jobs)


def failing(claims: Iterable[Claim]) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims if not claim.holds}


# ---- a course in which every claim holds


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Claim]]:
    course = write_checked_course(tmp_path_factory.mktemp("whole") / "course")
    return course, claims_of(course, "1", "2", "3", only=(), jobs=2)


def test_a_good_course_holds_every_claim(whole: tuple[Path, list[Claim]]) -> None:
    """Every kind but notebooks, of which there is none, has claims, and all of them hold."""
    _, claims = whole

    assert failing(claims) == {}
    assert {claim.kind for claim in claims} == set(KINDS) - {"notebook"}
    assert len({claim.id for claim in claims}) == len(claims)
    assert [claim.chapter for claim in claims] == sorted(claim.chapter for claim in claims)


def test_every_claim_says_where_and_what_to_do(whole: tuple[Path, list[Claim]]) -> None:
    """A claim names a place of the course that is there, and says what to do when it fails."""
    course, claims = whole

    for claim in claims:
        assert claim.claim
        assert claim.todo, claim.id
        assert (course / claim.where.partition(":")[0]).exists(), claim.where


# ---- each claim made to fail


def apply(course: Path, edits: Iterable[tuple[str, str, str]]) -> None:
    for name, find, replace in edits:
        file = course / name
        if "\udcff" in replace:
            file.write_bytes(file.read_bytes().replace(find.encode(), b"\xff"))
        elif find:
            edit(file, find, replace)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(replace.encode())


@pytest.mark.parametrize("name", BROKEN)
def test_a_claim_that_is_false_fails_and_says_so(course: Path, name: str) -> None:
    """What is wrong fails exactly the claims about it: where, and what is so."""
    broken = BROKEN[name]
    apply(course, broken.edits)

    chapters = [broken.chapter] if broken.chapter else ["1", "2", "3"]
    found = failing(claims_of(course, *chapters, only=broken.only))

    assert set(found) == set(broken.fails)
    for name, parts in broken.fails.items():
        told = f"{found[name].where}\n{found[name].found}"
        for part in parts:
            assert part in told, f"{name}: {told}"
        assert found[name].todo


def test_every_claim_is_made_to_fail_above(whole: tuple[Path, list[Claim]]) -> None:
    """No claim of the good course is of a kind that no test has seen fail."""
    _, claims = whole

    def pattern(name: str) -> str:
        name = re.sub(r"^\d\d", "NN", name)
        name = re.sub(r"signature\..*\.py$", "signature.FILE", name)
        name = re.sub(r"demo\..*", "demo.FILE", name)
        name = re.sub(r"fault\.(?!each-test|unfinished)[\w-]+", "fault.NAME", name)
        return re.sub(r"run-\d+", "run-N", name)

    seen = {pattern(name) for broken in BROKEN.values() for name in broken.fails}
    assert {pattern(claim.id) for claim in claims} - seen == set()


# ---- how it runs


def test_jobs_change_nothing(course: Path) -> None:
    """The same claims in the same order, whatever the number of threads."""
    apply(course, BROKEN["fault: not as it says"].edits)

    one = claims_of(course, "1", only=("fault", "manifest", "overlay"), jobs=1)
    many = claims_of(course, "1", only=("fault", "manifest", "overlay"), jobs=4)

    assert one == many


def test_a_chapter_named_twice_is_proved_once(course: Path) -> None:
    """`grader check 1 01` is `grader check 1`."""
    assert claims_of(course, "1", "01", only=["overlay"]) == claims_of(
        course, "1", only=["overlay"]
    )


def test_a_broken_manifest_stops_no_other_chapter(course: Path) -> None:
    """The chapter that cannot be read fails; the chapter after it is proved all the same."""
    (course / TWO / "chapter.toml").write_bytes(b"number = \xff")

    claims = claims_of(course, "1", "2", "3", only=(*QUICK, "green"))

    assert set(failing(claims)) == {"02.manifest.form"}
    assert {"01.overlay.listed", "03.overlay.listed", "03.green.seed-1"} <= {c.id for c in claims}


def test_fail_fast_ends_at_the_first_failure(course: Path) -> None:
    """What follows the first failure is not tried: here, the runs of the other chapters."""
    edit(course / DONE_1 / GREET, ', please"', '"')
    loaded = load_course(course)

    claims = check(loaded, loaded.chapters, only=["green"], jobs=1, fail_fast=True)

    assert "01.green.seed-1" in failing(claims)
    assert len(claims) < 6


def test_a_failure_of_the_caller_ends_everything(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl+C arrives while jobs run: it comes through, and no folder and no thread is left."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    loaded = load_course(course)
    before = threading.active_count()

    def interrupt(claim: Claim | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(loaded, loaded.chapters, only=("green", "prose"), jobs=2, on_claim=interrupt)

    assert list(scratch.iterdir()) == []
    assert threading.active_count() == before


def test_progress_is_told(course: Path) -> None:
    """`on_start` hears the number of jobs, `on_claim` each claim, and None after each job."""
    loaded = load_course(course)
    heard: list[Claim | None] = []
    jobs: list[int] = []

    claims = check(
        loaded, loaded.chapters, only=QUICK, jobs=2, on_start=jobs.append, on_claim=heard.append
    )

    assert jobs == [10]
    assert heard.count(None) == 10
    assert sorted(c.id for c in heard if c is not None) == sorted(c.id for c in claims)


def test_mutants_cannot_be_made_without_the_extra(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that needs an extra fails without it, and names it."""
    monkeypatch.setitem(sys.modules, "mutmut.mutation.file_mutation", None)

    found = failing(claims_of(course, "2", only=["survivor"]))

    assert list(found) == ["02.survivor.score"]
    assert "mutants cannot be made" in found["02.survivor.score"].found
    assert "'.[check]'" in found["02.survivor.score"].todo


def test_a_sample_below_the_figure_is_completed(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figure is about all mutants: where the sample falls below it, the others are tried."""
    monkeypatch.setattr("grader.claims.survivor.SAMPLE", 1)

    (good,) = (c for c in claims_of(course, "2", only=["survivor", "demo"]) if c.facts)
    apply(course, BROKEN["survivor"].edits[:-1])
    (bad,) = (c for c in claims_of(course, "2", only=["survivor", "demo"]) if c.facts)

    assert (good.holds, good.facts) == (True, {"caught": 1, "of": 1, "all": 2})
    assert (bad.holds, bad.facts) == (False, {"caught": 0, "of": 2, "all": 2})
    assert bad.found.startswith("0.0% of 2 are; these are not:\n")


def test_a_readme_command_that_fails_in_the_middle_fails(course: Path) -> None:
    """The fence's exit code is that of the first command that fails, not of the last."""
    fence = "grader practice 01 mydir\n```"
    edit(course / ONE / "README.md", fence, f"false\n{fence}".replace("practice 01 mydir", "list"))
    edit(course / ONE / "README.md", "sh run exit=1", "sh run")

    found = failing(claims_of(course, "1", only=["prose"]))

    assert list(found) == ["01.prose.run-1"]
    assert "it ended with 1" in found["01.prose.run-1"].found


# ---- reports


def test_reports_agree(course: Path) -> None:
    """Text, JSON and JUnit name the same claims, and the same ones as failed."""
    apply(course, BROKEN["overlay: files"].edits)
    loaded = load_course(course)
    claims = check(loaded, loaded.chapters, only=QUICK, jobs=1)
    bad = failing(claims)

    text = check_report.text(loaded, loaded.chapters, claims, PLAIN)
    told = json.loads(check_report.as_json(loaded, claims))
    suites = ElementTree.fromstring(check_report.as_junit(claims))

    assert f"course: {loaded.root}\n" in text
    assert "ok   01-greeting" in text
    assert "FAIL 02-counting                  3 of 12 claims fail" in text
    assert text.endswith(f"{len(bad)} of {len(claims)} claims fail\n")
    for claim in bad.values():
        shown = text.partition(f"\n{claim.id}  {claim.where}\n")[2].partition("\n\n")[0]
        assert f"claimed   {claim.claim}" in shown
        assert f"so is     {claim.found}" in shown
        assert f"to do     {claim.todo}" in shown
    assert (told["claims"], told["failed"]) == (len(claims), len(bad))
    assert [each["id"] for each in told["results"]] == [claim.id for claim in claims]
    assert {each["id"] for each in told["results"] if not each["holds"]} == set(bad)
    assert {case.get("name") for case in suites.iter("testcase")} == {c.id for c in claims}
    assert {case.get("name") for case in suites.iter("testcase") if len(case)} == set(bad)
    for failure in suites.iter("failure"):
        assert failure.text is not None
        assert any(claim.found in failure.text for claim in bad.values())


def test_nothing_proved_is_not_green(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chapter without a recording has nothing to show for `--only demo`: exit code 1."""
    assert cli.main(["check", "1", "--only", "demo", "--course", str(course)]) == 1

    assert capsys.readouterr().out.endswith("no claim was proved\n")


def exit_code(course: Path, arguments: str) -> int:
    return cli.main(["check", *arguments.split(), "--jobs", "1", "--course", str(course)])


def test_exit_codes(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0: all hold; 1: one fails; 2: there is no such chapter, kind or course."""
    assert exit_code(course, "2 --only overlay") == 0
    assert capsys.readouterr().out.endswith("all 4 claims hold\n")
    assert exit_code(course, "7 --only overlay") == 2
    assert "there is no chapter `7`" in capsys.readouterr().err
    assert exit_code(course, "2 --only colour") == 2
    assert "there is no kind `colour`; the kinds are manifest, " in capsys.readouterr().err
    assert exit_code(course / "chapters", "2") == 2
    assert "is no course" in capsys.readouterr().err
    apply(course, BROKEN["overlay: files"].edits)
    assert exit_code(course, "2 --only overlay --format json") == 1
    assert json.loads(capsys.readouterr().out)["failed"] == 3
    assert exit_code(course, "2 --only overlay --format junit") == 1
    assert ElementTree.fromstring(capsys.readouterr().out).tag == "testsuites"


def test_odd_courses_give_no_traceback(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A README that is missing, a test file that is a folder, a solution that is gone."""
    (course / ONE / "README.md").unlink()
    tests = course / TWO / "tests/test_02_counting.py"
    tests.unlink()
    tests.mkdir()
    (course / DONE_3 / "mini_agent/farewell.py").unlink()

    assert exit_code(course, "") == 1

    out = capsys.readouterr().out
    assert "missing file chapters/01-greeting/README.md" in out
    assert "chapters/02-counting/tests/test_02_counting.py cannot be read" in out
    assert "missing file solutions/03-farewell/mini_agent/farewell.py" in out
    assert "Traceback" not in out


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C for one process only is POSIX")
@pytest.mark.parametrize("wait", ["at once", "in the middle"])
def test_ctrl_c_ends_it_cleanly(course: Path, tmp_path: Path, wait: str) -> None:
    """Ctrl+C while tests hang: exit code 130, one word, no process and no folder is left."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    flag = tmp_path / "running"
    code = f"def hello(name: str) -> str:\n    open({str(flag)!r}, 'w').close()\n"
    code += "    while True: pass\n"
    edit(
        course / DONE_1 / GREET,
        "def hello(name: str) -> str:",
        code + "\n\ndef unused(name: str) -> str:",
    )
    command = [sys.executable, "-m", "grader", "check", "1", "--only", "green", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--course", str(course)],
        env=os.environ | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if wait == "in the middle":
        wait_for(flag.exists)
    else:
        wait_for(lambda: any(scratch.glob("grader-check-*/*")))

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=9)  # a hanging test alone would have 10 seconds

    assert (process.returncode, out, err.strip()) == (130, "", "stopped")
    assert list(scratch.iterdir()) == []
    wait_for(lambda: not processes_with(str(tmp_path)))


def wait_for(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come to pass in 30 seconds")


def processes_with(text: str) -> list[str]:
    """The command lines of other processes in which `text` stands."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if text in line and "ps -eo" not in line]
