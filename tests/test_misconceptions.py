"""A learner's failures that are exactly a known mistake's are told which one; no others are."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import toy_course
from toy_course import CHAPTERS, edit, write_course

from grader import cli, misconceptions
from grader.check import check
from grader.claims import unfinished
from grader.claims.claim import Workspace
from grader.course import Chapter, load_course
from grader.misconceptions import candidates, recognise, run_planted, signature
from grader.results import Failure, Run, TestResult
from grader.runner import Expected, Limits, Warm, run_tests

REAL = load_course(Path(__file__).parents[1])


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The made-up course, and a finished practice of its first chapter, `work/mydir`."""
    root = write_course(tmp_path / "course")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert cli.main(["--course", str(root), "export", "1", "mydir"]) == 0
    return root


def graded(capsys: pytest.CaptureFixture[str], course: Path, arguments: str) -> str:
    """What a verb prints."""
    capsys.readouterr()
    cli.main([*arguments.split(), "--course", str(course)])
    return capsys.readouterr().out


def greet(find: str, replace: str) -> None:
    edit(Path("mydir/mini_agent/greet.py"), find, replace)


# ---- what a learner is told


def test_a_known_mistake_is_named(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code of the learner's own that fails as a fault does: its name, what is behind it, where to
    read. `practice` and `test` say the same."""
    greet('"""Greetings."""', '"""My own greetings."""\n\n# a line more\n')
    greet('return f"hello {name}"', 'person = name.strip()\n    return "hello " + person')
    told = (
        "looks like: The name is stripped\n"
        "  You strip the name; a name is the caller's text.\n"
        '  read: "A greeting"\n'
    )

    assert told in graded(capsys, course, "test mydir")
    assert told in graded(capsys, course, "practice 1 mydir")


def test_programs_are_told_too(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has it under `looks_like`, null where there is nothing to say."""
    assert json.loads(graded(capsys, course, "test mydir --format json"))["looks_like"] is None

    greet(', please"', '"')

    assert json.loads(graded(capsys, course, "test mydir --format json"))["looks_like"] == {
        "name": "rude",
        "title": "No please",
        "misconception": "You forgot your manners.",
        "section": "Manners",
    }


@pytest.mark.parametrize("part", ["--step 1.2", "-k polite"])
def test_a_part_of_the_tests_says_too_little(
    course: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    """What fails outside of the selection is not known, so nothing is said."""
    greet(', please"', '"')

    assert "looks like" in graded(capsys, course, "test mydir")
    assert "looks like" not in graded(capsys, course, f"test mydir {part}")


def test_the_same_tests_with_other_values_are_another_mistake(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tests and the rule are the fault's, the values are not: nothing is said."""
    greet(', please"', ', pleas"')

    out = graded(capsys, course, "test mydir")

    assert "please comes last" in out
    assert "looks like" not in out


def test_one_failure_more_is_another_mistake(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault's failures and one besides: nothing is said."""
    greet('return f"hello {name}"', 'return f"hello {name.strip()}"')
    greet(', please"', '"')

    assert "looks like" not in graded(capsys, course, "test mydir")


@pytest.mark.parametrize("body", ["raise NotImplementedError", "return None", 'return ""', "pass"])
def test_unwritten_code_is_no_mistake(
    course: Path, capsys: pytest.CaptureFixture[str], body: str
) -> None:
    """A body that is not written yet, or is a first attempt, is told nothing."""
    greet('return f"{hello(name)}, please"', body)

    assert "looks like" not in graded(capsys, course, "test mydir")


def test_a_new_practice_is_told_nothing(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An untouched starter is unfinished, and no more."""
    assert "looks like" not in graded(capsys, course, "practice 3 fresh")


def test_with_stretch_the_focused_tests_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--stretch` runs all focused tests too, so a known mistake is named."""
    root = write_course(tmp_path / "course")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--course", str(root), "export", "2", "mydir"]) == 0
    edit(Path("mydir/mini_agent/count.py"), "len(text.split())", "len(text)")

    assert "looks like: Letters are counted" in graded(capsys, root, "test mydir --stretch")


def test_a_fault_that_no_longer_fits_says_nothing(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A course in the middle of a change gives a report all the same."""
    greet(', please"', '"')
    manifest = course / "chapters/01-greeting/chapter.toml"
    edit(manifest, "find = ', please\"'", "find = ', thanks\"'")

    out = graded(capsys, course, "test mydir")

    assert "2 of 3 passed" in out
    assert "looks like" not in out


# ---- the comparison


def run_of(chapter: Chapter, **failures: Failure) -> Run:
    """A run of all focused tests in which the named ones fail."""
    tests = tuple(
        TestResult(
            test.name,
            test.title,
            step.id,
            "failed" if test.name in failures else "passed",
            failure=failures.get(test.name),
        )
        for step, test in chapter.focused
    )
    return Run(tests, 0.1)


def test_addresses_folders_and_clocks_are_left_out(course: Path) -> None:
    """What differs from run to run is no difference; everything else is."""
    chapter = load_course(course).chapter("1")
    one, other, third = (
        signature(run_of(chapter, test_polite_adds_please=Failure(text, exception="OSError")))
        for text in (
            "<f at 0x7f01> in /tmp/grader-ab12/run-1/tmp/x at 1796046713932",
            "<f at 0xbeef> in /var/folders/T/grader-zz/run-1/tmp/x at 1796046889551",
            "<f at 0xbeef> in /var/folders/T/grader-zz/run-1/tmp/x at 1796046889",
        )
    )

    assert one == other
    assert other != third


def test_only_whole_and_trusted_runs_have_candidates(course: Path) -> None:
    """A run with a test left out, not run, not trusted, or unwritten somewhere has none."""
    chapter = load_course(course).chapter("1")
    failure = Failure("please comes last", exception="AssertionError")
    run = run_of(chapter, test_polite_adds_please=failure)
    skipped = dataclasses.replace(run.tests[0], outcome="not run")
    unwritten = dataclasses.replace(failure, message="please comes last: NotImplementedError()")

    assert [fault.name for fault in candidates(chapter, run)] == ["rude"]
    for other in (
        dataclasses.replace(run, trusted=False),
        dataclasses.replace(run, tests=run.tests[1:]),
        dataclasses.replace(run, tests=(skipped, *run.tests[1:])),
        run_of(chapter, test_polite_adds_please=unwritten),
        run_of(chapter),
    ):
        assert candidates(chapter, other) == []


def test_two_faults_that_look_alike_are_never_guessed(course: Path) -> None:
    """Where two faults give the learner's failures, neither is named."""
    loaded = load_course(course)
    chapter = loaded.chapter("1")
    rude = chapter.manifest.faults[2]
    twin = msgspec.structs.replace(rude, name="twin")
    manifest = msgspec.structs.replace(chapter.manifest, faults=(*chapter.manifest.faults, twin))
    twofold = Chapter(chapter.directory, chapter.solutions, manifest)
    run = run_of(chapter, test_polite_adds_please=Failure("please comes last"))

    assert recognise(chapter, run, lambda fault: run) == rude
    assert recognise(twofold, run, lambda fault: run) is None


# ---- the real course


@pytest.fixture(scope="module")
def warm() -> Iterator[tuple[Warm, Warm]]:
    """Two workers with different hash seeds."""
    with contextlib.ExitStack() as stack:
        yield (
            stack.enter_context(Warm(hash_seed=11)),
            stack.enter_context(Warm(hash_seed=12)),
        )


@pytest.mark.parametrize("chapter", REAL.chapters, ids=lambda chapter: chapter.slug)
def test_a_fault_is_recognised_as_itself(chapter: Chapter, warm: tuple[Warm, Warm]) -> None:
    """Faults of the course, planted, are recognised in another process as themselves.

    A few of each chapter; that every one fails alike in two processes, and like no other, is
    `grader check`'s, claims `fault.NAME` and `fault.NAME.told-apart`.
    """
    mine, other = warm
    for fault in chapter.manifest.faults[:: len(chapter.manifest.faults) // 3]:
        run = run_planted(REAL, chapter, fault, mine, Limits())

        found = misconceptions.look(REAL, chapter, run, other, Limits())

        assert found is not None, f"{fault.name} looks like nothing: {signature(run)}"
        assert found.name == fault.name


@pytest.mark.parametrize("chapter", REAL.chapters, ids=lambda chapter: chapter.slug)
def test_no_half_finished_solution_is_taken_for_a_fault(
    chapter: Chapter, warm: tuple[Warm, Warm], tmp_path: Path
) -> None:
    """Each beginning of the steps, with bodies that return "" for the rest, looks like none.

    Bodies that raise or return None are `grader check`'s, claim `fault.unfinished`.
    """

    def run(directory: Path, expected: Sequence[Expected], **options: object) -> Run:
        return run_tests(directory, expected, warm=warm[0], on_result=options.get("on_result"))

    space = Workspace(REAL, chapter, tmp_path, run)

    assert list(unfinished.halves(space, ("returns ''",)))
    assert list(unfinished.mistaken(space, ("returns ''",))) == []


# ---- half-finished solutions


def test_halves_are_the_beginnings_of_the_steps(course: Path, tmp_path: Path) -> None:
    """No step done and one step done, each with three kinds of body for the others."""
    loaded = load_course(course)
    space = Workspace(loaded, loaded.chapter("1"), tmp_path, run_tests)

    halves = list(unfinished.halves(space))

    assert [str(half) for half in halves] == [
        f"{done}, every other body {stub}"
        for done in ("0 steps done", "1 step done")
        for stub in ("raises", "returns None", "returns ''")
    ]
    assert halves[4].files == {
        "mini_agent/greet.py": toy_course.GREETING_SOLUTION.replace(
            'return f"{hello(name)}, please"', "return None"
        )
    }


def test_a_half_keeps_what_the_parent_had(course: Path, tmp_path: Path) -> None:
    """Functions that earlier chapters wrote stay; a method of a changed file is this chapter's."""
    loaded = load_course(course)
    space = Workspace(loaded, loaded.chapter("2"), tmp_path, run_tests)

    half = next(iter(unfinished.halves(space, ("raises",))))

    assert half.files["mini_agent/greet.py"] == toy_course.COUNTING_GREET.replace(
        "self.n = n", 'raise NotImplementedError("step 2.1")'
    )


def test_check_says_nothing_of_the_good_course(course: Path) -> None:
    """All chapters of the made-up course hold the claim."""
    loaded = load_course(course)
    claims = check(loaded, loaded.chapters, only=["fault"], jobs=2)

    mine = [claim for claim in claims if claim.id.endswith("fault.unfinished")]
    assert [claim.holds for claim in mine] == [True] * len(CHAPTERS)


def test_run_planted_leaves_nothing_behind(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder in which a fault is planted is gone afterwards."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    loaded = load_course(course)
    chapter: Chapter = loaded.chapter("3")

    run = run_planted(loaded, chapter, chapter.manifest.faults[0], None, Limits())

    assert [test.outcome for test in run.tests] == ["failed"]
    assert list(scratch.iterdir()) == []
