"""The verbs: what they print where, their exit codes, and one clear error for each mistake."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import toy_course

from grader.cli import main

GREET = "mini_agent/greet.py"


@dataclass
class Said:
    """What one command did."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """The made-up course, in a checkout around the working directory."""
    return toy_course.write_course(tmp_path / "course")


@pytest.fixture
def grader(
    course: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run a command inside the made-up course, as `grader ARGUMENTS` would."""
    monkeypatch.chdir(course)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def command(*arguments: str) -> Said:
        code = main(arguments)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return command


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


# practice and test


def test_a_new_practice_is_red_and_says_why(grader: Command, course: Path) -> None:
    """Exit 1: every test is listed, the cause once, and what to do first."""
    said = grader("practice", "02", "mydir")

    assert said.code == 1
    assert said.err == "made mydir from 01-greeting and the starter of 02-counting\n"
    cause = "cannot import name 'Count' from 'mini_agent.greet'"
    assert said.out.count(cause) == 1
    assert [line.strip() for line in said.out.split("\n") if line.startswith("    ----")] == [
        "----  count: holds a number",
        "----  words: are counted",
        "----  words: 没有词 is zero",
    ]
    assert "Red is where every chapter starts: nothing is broken." in said.out
    assert "0 of 3 passed" in said.out
    assert f"course: {course}" in said.out


def test_practice_again_only_grades(grader: Command, course: Path) -> None:
    """Nothing of the learner's is written, nor anything beside it."""
    grader("practice", "1", "mydir")
    toy_course.edit(
        course / "mydir" / GREET, 'raise NotImplementedError("step 1.1")', "return name"
    )
    before = snapshot(course)

    said = grader("practice", "greeting", "mydir")

    assert said.code == 1
    assert said.err == ""
    assert "your code: mini_agent/greet.py" not in said.out  # a wrong value has no line of its own
    assert "expected  'hello Ada'\n          got       'Ada'" in said.out
    assert "not started (NotImplementedError)" in said.out
    assert "Red is where every chapter starts" not in said.out
    assert snapshot(course) == before


def test_from_the_first_chapter_to_the_next(grader: Command, course: Path) -> None:
    """Green, the next command as printed, and the learner's own code comes along."""
    grader("practice", "1", "mydir")
    own = toy_course.GREETING_SOLUTION + "\n# mine\n"
    (course / "mydir" / GREET).write_text(own, encoding="utf-8")

    green = grader("test", "mydir")
    said = grader("practice", "02", "NEXT", "--from", "mydir")

    assert green.code == 0
    assert "3 of 3 passed" in green.out
    assert green.out.endswith("next: `grader practice 02 NEXT --from mydir`\n")
    assert said.code == 1
    assert "warning" not in said.out
    assert (course / "NEXT" / GREET).read_text(encoding="utf-8") == own


def test_no_practice_is_made_inside_another(
    grader: Command, course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who repeats the command inside the directory is told where they are."""
    grader("practice", "1", "my dir")
    monkeypatch.chdir(course / "my dir")
    before = snapshot(course)

    said = grader("practice", "1", "my dir")

    assert said == Said(
        2,
        "",
        "error: `my dir` would stand inside the practice directory `.`\n\n"
        "hint: `grader test .` grades that one\n",
    )
    assert grader("practice", "1", "new").err.endswith("; `../new` would stand beside it\n")
    assert snapshot(course) == before
    assert grader("practice", "2", "../next", "--from", ".").code == 1


def test_from_a_red_practice_warns_and_goes_on(grader: Command, course: Path) -> None:
    """Half a chapter is better than none."""
    grader("practice", "1", "mydir")
    (course / "mydir/mini_agent/__init__.py").unlink()

    said = grader("practice", "02", "NEXT", "--from", "mydir")

    assert said.code == 1
    assert "warning: `mydir` has no mini_agent/__init__.py: the reference's is used" in said.out
    assert "warning: `mydir` is not green: 0 of 3 pass" in said.out
    assert "without `--from` you start from the course's own 01-greeting" in said.out
    assert (course / "NEXT" / GREET).read_text(encoding="utf-8") == toy_course.GREETING_STARTER


def test_an_export_is_green(grader: Command) -> None:
    """`grader export 02 done && grader test done`, and its stretch tests."""
    assert grader("export", "02", "done").out == "wrote 02-counting, finished, to done\n"

    said = grader("test", "done", "--stretch")

    assert said.code == 0
    assert "5 of 5 passed" in said.out
    assert "stretch tests" in said.out


def test_the_parent_can_be_exported(grader: Command, course: Path) -> None:
    """It is the finished checkpoint of the chapter before."""
    said = grader("export", "02", "before", "--parent")

    assert said.out == "wrote 01-greeting, finished, to before\n"
    assert (course / "before" / GREET).read_text(encoding="utf-8") == toy_course.GREETING_SOLUTION


def test_a_part_of_the_tests(grader: Command) -> None:
    """--step and -k choose; the count is theirs, and the next step is the whole."""
    grader("export", "02", "done")

    step = grader("test", "done", "--step", "2.2")
    text = grader("test", "done", "-k", "NONE")
    title = grader("test", "done", "-k", "没有词")

    assert "2 of 2 passed" in step.out
    assert "1 of 1 passed" in text.out
    assert "1 of 1 passed" in title.out
    assert step.out.endswith("next: the whole chapter, `grader test done`\n")


def test_the_working_directory_is_the_default(
    grader: Command, course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`grader test` inside of a practice grades it."""
    grader("export", "01", "done")
    monkeypatch.chdir(course / "done")

    assert grader("test").code == 0
    assert grader("test", ".").code == 0


def test_json_and_junit_go_to_stdout_alone(grader: Command) -> None:
    """A program can read them as they are; the exit code is the same."""
    grader("practice", "1", "mydir")

    as_json, as_junit = (grader("test", "mydir", "--format", form) for form in ("json", "junit"))

    data = json.loads(as_json.out)
    assert (as_json.code, as_junit.code) == (1, 1)
    assert (data["chapter"], data["directory"], data["failed"]) == ("01", "mydir", 3)
    assert data["tests"][0]["id"] == "test_hello_names_the_person"
    assert xml.fromstring(as_junit.out)[0].get("failures") == "3"
    assert as_json.err == as_junit.err == ""


def test_a_time_limit_can_be_set(grader: Command, course: Path) -> None:
    """--timeout is for one test: it fails, and the rest runs."""
    grader("export", "1", "mydir")
    toy_course.edit(course / "mydir" / GREET, 'return f"{hello(name)}, please"', "while True: ...")

    said = grader("test", "mydir", "--timeout", "0.4")

    assert said.code == 1
    assert "2 of 3 passed" in said.out


def test_an_edited_copy_of_the_tests_is_named(grader: Command, course: Path) -> None:
    """The course's own copy runs."""
    grader("practice", "1", "mydir")
    (course / "mydir/tests/test_01_greeting.py").write_text("def test_hello_keeps_spaces(): ...\n")

    said = grader("test", "mydir")

    assert said.code == 1
    assert "0 of 3 passed" in said.out
    assert "note: tests/test_01_greeting.py differs from the course's copy" in said.out


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"x = 1\ndef (", "SyntaxError in mini_agent/greet.py:2"),
        (b'x = 1\ny = "\xff"', "mini_agent/greet.py:2"),
        (None, "mini_agent/greet.py is a directory"),
    ],
    ids=["syntax", "not utf-8", "directory"],
)
def test_a_file_that_cannot_be_read_is_red_and_named(
    grader: Command, course: Path, content: bytes | None, says: str
) -> None:
    """A red run and no error of the grader: exit 1, with the file."""
    grader("export", "1", "mydir")
    file = course / "mydir" / GREET
    file.unlink()
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)

    said = grader("test", "mydir")

    assert said.code == 1
    assert "0 of 3 passed" in said.out
    assert says in said.out


def test_a_directory_of_another_version_is_a_warning(grader: Command, course: Path) -> None:
    """It is graded all the same."""
    grader("export", "1", "done")
    toy_course.edit(course / "done/.grader.toml", 'version = "1.', 'version = "0.')

    said = grader("test", "done")

    assert said.code == 0
    assert "warning: `done` was made from version 0." in said.out


@pytest.mark.parametrize("name", ["with space", "目录", 'it\'s "so"', "y" * 200])
def test_a_path_of_any_kind_is_graded(grader: Command, course: Path, name: str) -> None:
    """And printed so that it can be pasted."""
    said = grader("export", "1", name)

    graded = grader("test", name)

    assert said.code == graded.code == 0
    assert "3 of 3 passed" in graded.out


def test_a_symlinked_path_is_graded(grader: Command, course: Path) -> None:
    """Through a symlink works too."""
    grader("export", "1", "done")
    (course / "link").symlink_to("done")

    assert grader("test", "link").code == 0


# the other verbs


def test_hints_come_one_at_a_time(grader: Command) -> None:
    """The first is vague; --level takes the next."""
    first = grader("hint", "2", "2.2").out
    assert "hint 1 of 2\ncourse: " in first
    assert "\n\n  str.split\n\n" in first
    assert "Count(len(text.split()))" in grader("hint", "2", "2.2", "--level", "2").out


def test_a_step_names_its_chapter(grader: Command) -> None:
    """`hint 1.1` is `hint 1 1.1`."""
    assert grader("hint", "1.1", "--level", "2") == grader("hint", "1", "1.1", "--level", "2")


def test_a_lost_file_can_come_back(grader: Command, course: Path) -> None:
    """Where a file of the chapter is missing, the hint is the command that brings it back."""
    grader("export", "2", "mydir")
    (course / "mydir" / GREET).unlink()

    said = grader("test", "mydir")

    command = f"`grader reset mydir {GREET}`"
    assert said.code == 1
    assert said.out.endswith(
        f"\nhint: {GREET} is missing; {command} brings it back as it was at the start\n"
    )
    grader("reset", "mydir", GREET)
    assert grader("test", "mydir").code == 0


def test_a_module_of_the_learners_own_is_not_offered(grader: Command, course: Path) -> None:
    """`reset` knows nothing of a module that the chapter never had."""
    grader("export", "2", "mydir")
    (course / "mydir" / GREET).write_text("import mini_agent.mine", encoding="utf-8")

    assert "remove the cause above" in grader("test", "mydir").out


def test_diff_shows_code_only_when_asked(grader: Command) -> None:
    """The file list is no spoiler."""
    plain, revealed = grader("diff", "02"), grader("diff", "02", "--reveal")

    assert "  added    mini_agent/count.py  +8\n" in plain.out
    assert "class Count" not in plain.out
    assert "+class Count:\n" in revealed.out
    assert (plain.code, revealed.code) == (0, 0)


def test_checkpoint_and_list(grader: Command) -> None:
    """Both name the course, since it is not the packaged one."""
    assert "first red       3 tests failed: NotImplementedError" in grader("checkpoint", "1").out
    assert "  02-counting " in grader("list").out
    assert "course: " in grader("list").out


def test_reset_keeps_the_old_file(grader: Command, course: Path) -> None:
    """And lists what differs, without a file."""
    grader("practice", "1", "mydir")
    (course / "mydir" / GREET).write_text("mine")

    listed = grader("reset", "mydir")
    done = grader("reset", "mydir", GREET)
    again = grader("reset", "mydir", GREET)

    assert f"  changed  {GREET}\n" in listed.out
    assert done.out == f"{GREET} is as it was at the start; yours is now mydir/{GREET}.bak\n"
    assert again.out == f"{GREET} is as it was at the start already; nothing was changed\n"
    assert (course / "mydir" / f"{GREET}.bak").read_text() == "mine"
    assert grader("reset", "mydir").out == "Every file is as it was at the start.\n"


def test_course_can_be_named_before_or_after_the_verb(
    course: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From anywhere."""
    monkeypatch.chdir(tmp_path)

    codes = (main(["--course", "course", "list"]), main(["list", "--course", "course"]))

    assert codes == (0, 0)
    assert capsys.readouterr().out.count("02-counting") == 2


def test_help_teaches(grader: Command) -> None:
    """Examples that can be copied, in the group and in each verb that takes more than a name."""
    assert "grader practice 05 mydir" in grader("--help").out
    for verb in ("practice", "test", "hint", "reset", "export"):
        said = grader(verb, "--help")
        assert said.code == 0
        assert f"grader {verb} " in said.out.split("\n", 1)[1]


# bad input: one message, exit 2, no traceback, nothing changed


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("", "Usage: grader", "practice"),
        ("dance", "error: no such command 'dance'", "`grader --help`"),
        ("practice", "error: missing argument 'CHAPTER'", "`grader practice --help`"),
        ("practice 13 new", "error: there is no chapter `13`", "02-counting"),
        ("practice 1 file", "error: `file` exists and is not a directory", "does not exist yet"),
        ("practice 1 stranger", "error: `stranger` exists and is not empty", "does not exist yet"),
        ("practice 1 file/new", "error: `file/new` cannot be", ""),
        (f"practice 1 {'z' * 300}", "cannot be", ""),
        ("practice 1 loop/new", "error: `loop/new` cannot be", ""),
        ("practice 1 chapters/new", "error: `chapters/new` is inside the course's own", "mydir"),
        ("practice 1 solutions", "error: `solutions` is inside the course's own", "mydir"),
        (
            "practice 2 first",
            "is a practice of 01-greeting, not of 02-counting",
            "grader test first",
        ),
        ("practice 1 new --from first", "is the first chapter", ""),
        ("practice 3 new --from first", "goes on from 02-counting", "without `--from`"),
        ("practice 2 new --from nowhere", "error: `nowhere` is no directory", "grader practice"),
        ("practice 2 new --from stranger", "error: `stranger` is no practice", "grader practice"),
        ("test nowhere", "error: `nowhere` is no directory", "grader practice"),
        ("test stranger", "error: `stranger` is no practice directory", "grader practice"),
        ("test file", "error: `file` is no directory", "grader practice"),
        ("test first --step 9.9", "chapter 01 has no step `9.9`; its steps are 1.1, 1.2", ""),
        ("test first -k zebra", "error: no test has `zebra` in its name", "hello: keeps spaces"),
        ("test first --stretch", "error: 01-greeting has no stretch tests", ""),
        ("test first --timeout 0", "error: a time limit is a number of seconds above 0", ""),
        ("test first --run-timeout inf", "error: a time limit is a number of seconds", ""),
        ("test first --timeout nan", "error: a time limit is a number of seconds", ""),
        ("test first --timeout x", "error: invalid value for '--timeout'", "grader test --help"),
        ("test first --format csv", "error: invalid value for '--format'", "grader test --help"),
        ("test first --watch --format json", "error: `--watch` is for people", "grader test"),
        ("test first --stpe 1.1", "error: no such option", "grader test --help"),
        ("hint 1 7.7", "chapter 01 has no step `7.7`", ""),
        ("hint 1", "error: which step?", "1.1  "),
        ("hint 1.7", "chapter 01 has no step `1.7`", ""),
        ("hint 9.1", "there is no chapter `9`", "02-counting"),
        (
            "test .",
            "error: `.` is no practice directory",
            "grade one of them\n  `grader test first`",
        ),
        (
            "test first/mini_agent",
            "is no practice directory",
            "it is inside one: `grader test first`",
        ),
        ("hint 1 1.1 --level 9", "step 1.1 has 2 hints; there is no level 9", ""),
        ("hint 1 1.1 --level 0", "invalid value for '--level'", "grader hint --help"),
        ("checkpoint 13", "error: there is no chapter `13`", "02-counting"),
        ("diff x", "error: there is no chapter `x`", "02-counting"),
        ("export 1 first", "`first` exists already; nothing in it was changed", "a new name"),
        ("export 1 new --parent", "is the first chapter: its parent is empty", ""),
        ("reset stranger x", "error: `stranger` is no practice directory", "grader practice"),
        ("reset first nope.py", "error: `nope.py` is no file of chapter 01", "mini_agent/greet.py"),
        ("reset first greet.py", "`greet.py` is no file", "did you mean `mini_agent/greet.py`?"),
        ("--course nowhere list", "error: `nowhere` is no course", "--course"),
    ],
)
def test_bad_input_is_one_clear_error(
    grader: Command, course: Path, arguments: str, message: str, hint: str
) -> None:
    """Exit 2, on stderr, with a hint where there is one to give."""
    (course / "file").write_text("mine")
    (course / "loop").symlink_to("loop")
    (course / "stranger").mkdir()
    (course / "stranger/notes.txt").write_text("mine")
    from grader.course import load_course
    from grader.practice import create_practice

    made = load_course(course)
    create_practice(made, made.chapter("1"), course / "first")
    before = snapshot(course)

    said = grader(*arguments.split())

    assert said.code == 2
    assert said.out == ""
    assert message in said.err
    assert hint in said.err
    assert "Traceback" not in said.err
    assert said.err.count("error: ") == (1 if arguments else 0)
    assert snapshot(course) == before


def test_an_error_and_its_hint_are_apart(grader: Command) -> None:
    """`error:`, a blank line, `hint:`."""
    said = grader("practice", "2", "chapters")

    assert said.err == (
        "error: `chapters` is inside the course's own `chapters`\n"
        "\nhint: choose a directory of your own, such as `mydir`\n"
    )


@pytest.mark.parametrize("verb", ["practice 2 new", "checkpoint 2", "hint 2 2.1", "list"])
def test_a_broken_chapter_is_one_clear_error(grader: Command, course: Path, verb: str) -> None:
    """File and key, and nothing is made."""
    toy_course.edit(course / "chapters/02-counting/chapter.toml", "minutes", "hours")

    said = grader(*verb.split())

    assert said.code == 2
    assert said.err == ("error: chapters/02-counting/chapter.toml: unknown key `hours`\n")
    assert not (course / "new").exists()


# true processes


# A shell's background job ignores Ctrl+C, and so would what these tests start from it.
_WITH_CTRL_C = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from grader.__main__ import main
sys.exit(main())
"""


def start(
    *arguments: str, cwd: Path, how: Sequence[str] = ("-m", "grader")
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *how, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1"},
    )


def endless(course: Path, file: Path, line: str) -> Path:
    """Put an endless loop in place of `line`. Returns the file that it makes when it is reached."""
    running = course / "running"
    toy_course.edit(file, line, f"open({str(running)!r}, 'w').close()\n    while True: ...")
    return running


def wait_for(file: Path) -> None:
    end = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end, f"{file} did not come"
        time.sleep(0.02)


def test_python_m_grader_is_grader(course: Path) -> None:
    """With the exit code."""
    process = start("practice", "1", "mydir", cwd=course)

    out, err = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "0 of 3 passed" in out
    assert err == "made mydir from the starter of 01-greeting\n"


def test_a_reader_that_goes_away_is_no_error(course: Path) -> None:
    """`grader list | head -1`: nothing on stderr, and the exit code stays."""
    for arguments, code in ((("list",), 0), (("practice", "1", "mydir"), 1)):
        process = start(*arguments, cwd=course)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        err = process.stderr.read()

        assert process.wait(timeout=60) == code
        assert "Broken" not in err
        assert "Traceback" not in err
        process.stderr.close()


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX closes the streams")
def test_a_closed_stream_is_no_error(course: Path) -> None:
    """`>&-` and `2>&-`: nothing is said there, nothing elsewhere, and the exit code stays."""
    said = []
    for verb, stream in (("list", ">&-"), ("test nowhere", "2>&-")):
        ran = subprocess.run(
            f'"{sys.executable}" -m grader {verb} {stream}',
            shell=True,
            cwd=course,
            capture_output=True,
            text=True,
            check=False,
        )
        said.append((ran.returncode, ran.stdout, ran.stderr))

    assert said == [(0, "", ""), (2, "", "")]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device here")
def test_a_full_disk_is_one_error(course: Path) -> None:
    """The report could not be written: exit 2, said once."""
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "grader", "list"],
            cwd=course,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (ran.returncode, ran.stderr) == (2, "error: No space left on device\n")


def test_the_learner_waits_for_no_heavy_import(course: Path) -> None:
    """`--help` loads neither the course nor a terminal library; a graded run no pytest."""
    code = (
        "import sys; from grader.cli import main; main(sys.argv[1:]);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    loaded = []
    for arguments in (["--help"], ["practice", "1", "mydir"]):
        ran = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=course,
            capture_output=True,
            text=True,
            check=True,
        )
        loaded.append(set(ran.stderr.split("\n")[-2].split()))

    heavy = {"rich", "watchfiles", "pytest", "_pytest", "httpx", "asyncio", "anyio", "hypothesis"}
    assert not loaded[0] & (heavy | {"msgspec", "tomllib", "subprocess"})
    assert not loaded[1] & heavy


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C is sent differently there")
def test_ctrl_c_during_a_run_is_clean(course: Path) -> None:
    """One word, exit 130, and the directory as it was."""
    start("export", "1", "slow", cwd=course).communicate(timeout=60)
    running = endless(course, course / "slow" / GREET, 'return f"hello {name}"')
    before = snapshot(course / "slow")
    process = start("test", "slow", cwd=course, how=("-c", _WITH_CTRL_C))
    wait_for(running)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err.strip()) == (130, "", "stopped")
    assert snapshot(course / "slow") == before


class Watching:
    """A `--watch` in a process of its own; its reports come through a file."""

    def __init__(self, course: Path, *arguments: str) -> None:
        self.file = course / "reports.txt"
        self.stream = self.file.open("w", encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WITH_CTRL_C, *arguments],
            cwd=course,
            stdout=self.stream,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sees(self, text: str, times: int = 1) -> str:
        """Wait until the reports hold `text` that often."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            reports = self.file.read_text(encoding="utf-8")
            if reports.count(text) >= times:
                return reports
            time.sleep(0.02)
        raise AssertionError(f"{text!r} did not come:\n{self.file.read_text(encoding='utf-8')}")

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Wait for its end."""
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err

    def close(self) -> None:
        self.stream.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


Watch = Callable[..., Watching]


@pytest.fixture
def watch(course: Path) -> Iterator[Watch]:
    """Start a `--watch` in the made-up course; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments: str) -> Watching:
            return stack.enter_context(contextlib.closing(Watching(course, *arguments)))

        yield begin


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C is sent differently there")
def test_watch_grades_every_save_until_ctrl_c(course: Path, watch: Watch) -> None:
    """Red, green, a syntax error, green again; Ctrl+C ends it with the last run's code."""
    file = course / "mydir" / GREET
    watching = watch("practice", "1", "mydir", "--watch")

    watching.sees("0 of 3 passed")
    file.write_text(toy_course.GREETING_SOLUTION, encoding="utf-8")
    watching.sees("3 of 3 passed")
    file.write_text("def (", encoding="utf-8")
    watching.sees("SyntaxError")
    file.write_text(toy_course.GREETING_SOLUTION, encoding="utf-8")
    reports = watching.sees("3 of 3 passed", 2)

    code, err = watching.stop()
    assert code == 0
    assert "Traceback" not in err
    assert "\x1b" not in reports  # a file is no terminal: nothing is cleared


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C is sent differently there")
def test_watch_ends_a_run_that_is_out_of_date(course: Path, watch: Watch) -> None:
    """A save during an endless loop does not wait for the time limit."""
    toy = course / "chapters/01-greeting/starter" / GREET
    running = endless(course, toy, 'raise NotImplementedError("step 1.1")')
    file = course / "mydir" / GREET
    watching = watch("practice", "1", "mydir", "--watch", "--timeout", "300")
    wait_for(running)

    file.write_text(toy_course.GREETING_SOLUTION, encoding="utf-8")

    watching.sees("3 of 3 passed")
    assert watching.stop()[0] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty")
def test_only_a_terminal_is_cleared_and_counted(course: Path) -> None:
    """On one, `--watch` clears the screen and shows how far a run is; Ctrl+C is a key."""
    import pty

    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", _IN_TERMINAL, "practice", "1", "mydir", "--watch"],
        cwd=course,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=environment,
    )
    os.close(theirs)
    shown = b""
    try:
        while b"Ctrl+C ends it" not in shown:
            shown += os.read(ours, 1 << 16)
        os.write(ours, b"\x03")
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            while piece := os.read(ours, 1 << 16):
                shown += piece
        assert process.wait(timeout=30) == 1
    finally:
        process.kill()
        process.wait()
        os.close(ours)

    assert b"\x1b[2J\x1b[H\x1b[1mCheckpoint 01" in shown
    assert b"\rgrading: 0 of 3 " in shown  # at once: an import may hang, with an old report above
    assert b"\rgrading: 3 of 3 " in shown
    assert b"Traceback" not in shown


_IN_TERMINAL = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl+C reaches this process
signal.signal(signal.SIGINT, signal.default_int_handler)
from grader.__main__ import main
sys.exit(main())
"""


def test_a_watched_directory_that_goes_away_ends_the_watch(course: Path, watch: Watch) -> None:
    """One error, exit 2."""
    watching = watch("practice", "1", "mydir", "--watch")
    watching.sees("0 of 3 passed")

    shutil.rmtree(course / "mydir")

    code, err = watching.end()
    assert code == 2
    assert "error: `mydir` is gone" in err
    assert "Traceback" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C is sent differently there")
def test_ctrl_c_in_a_watched_run_ends_the_watch(course: Path, watch: Watch) -> None:
    """Not only the run. Nothing was graded yet: the code is that of red."""
    toy = course / "chapters/01-greeting/starter" / GREET
    running = endless(course, toy, 'raise NotImplementedError("step 1.1")')
    watching = watch("practice", "1", "mydir", "--watch", "--timeout", "300")
    wait_for(running)

    code, err = watching.stop()

    assert code == 1
    assert "Traceback" not in err
