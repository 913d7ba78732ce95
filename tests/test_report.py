"""Reports: what a learner reads, what a program reads, and what a terminal can show."""

import dataclasses
import io
import json
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import toy_course

from grader import grading, report, terminal
from grader.course import (
    Chapter,
    Course,
    FirstRed,
    FirstStep,
    Manifest,
    Step,
    Test,
    load_course,
)
from grader.report import Graded
from grader.results import Failure, Run, TestResult
from grader.terminal import Style

PLAIN = Style(color=False)


def step_of(id: str, title: str, section: str, tests: Sequence[tuple[str, str]]) -> Step:
    return Step(
        id=id,
        title=title,
        section=section,
        expected=len(tests),
        tests=tuple(Test(name=name, title=text) for name, text in tests),
        hints=("vague", "plain"),
        files=("mini_agent/providers/ndjson.py",),
    )


LINES = step_of(
    "11.1",
    "Lines from reads",
    "Cut a byte stream into lines",
    [
        ("test_lines_whole_reads", "lines: whole reads"),
        ("test_lines_a_split_inside_a_character", "lines: a split inside a character"),
    ],
)
PAYLOADS = step_of(
    "11.2",
    "Payloads to chunks",
    "From payloads to chunks",
    [(f"test_payloads_{n}", f"payloads: {n}") for n in ("one", "two", "three")],
)
MANIFEST = Manifest(
    number=11,
    title="Transfer",
    summary="Two unfamiliar streams.",
    mode="build",
    minutes=40,
    teaching_files=("mini_agent/providers/ndjson.py",),
    first_red=FirstRed(outcome="failed", message="NotImplementedError"),
    first_step=FirstStep(step="11.1", text="Make one incremental decoder."),
    steps=(LINES, PAYLOADS),
    faults=(),
)


@pytest.fixture
def course(tmp_path: Path) -> Course:
    (tmp_path / "11-transfer/tests").mkdir(parents=True)
    chapter = Chapter(tmp_path / "11-transfer", (tmp_path / "11",), MANIFEST)
    last = Chapter(tmp_path / "12-production-edges", (tmp_path / "12",))
    return Course(tmp_path, (chapter, last), packaged=True)


NOT_STARTED = Failure(
    "NotImplementedError: step 11.2",
    exception="NotImplementedError",
    where="mini_agent/providers/ndjson.py:30, in to_chunks",
)
SPLIT = Failure(
    "expected x\ngot y",
    expected="""['{"delta":"正在"}', '{"delta":"读取"}', '{"done":true}']""",
    got="""['{"delta":"\\ufffd\\ufffd\\ufffd在"}', …]""",
    because="the reply was cut after byte 11; a cut is no line end",
    where="mini_agent/providers/ndjson.py:14, in read_lines",
    traceback="Traceback: here",
    exception="Mismatch",
)


def run_of(*failures: Failure | str | None, **fields: Any) -> Run:
    """A run of chapter 11: for each test a failure, None for passed, or "not run"."""
    tests = []
    listed = [(step, test) for step in MANIFEST.steps for test in step.tests]
    for (step, test), failure in zip(listed, failures, strict=False):
        outcome: Any = "passed" if failure is None else "failed"
        if isinstance(failure, str):
            outcome, failure = "not run", None
        tests.append(TestResult(test.name, test.title, step.id, outcome, 0.02, failure))
    return Run(tuple(tests), fields.pop("seconds", 0.3), **fields)


def graded(course: Course, run: Run, **fields: Any) -> Graded:
    return Graded(run, course, course.chapters[0], "mydir", **fields)


def text(course: Course, run: Run, *, verbose: bool = False, **fields: Any) -> str:
    return report.text(graded(course, run, **fields), PLAIN, verbose=verbose)


def test_the_report_of_an_evening(course: Course) -> None:
    """The whole page: a step half done, a step not started, and what to do next."""
    page = text(course, run_of(None, SPLIT, NOT_STARTED, NOT_STARTED, NOT_STARTED))

    assert page == (
        """\
Checkpoint 11 · Transfer                                      mydir

  11.1  Lines from reads                                        1/2
    ok    lines: whole reads
    FAIL  lines: a split inside a character                  0.02 s
          expected  ['{"delta":"正在"}', '{"delta":"读取"}', '{"done":true}']
          got       ['{"delta":"\\ufffd\\ufffd\\ufffd在"}', …]
          the reply was cut after byte 11; a cut is no line end
          your code: mini_agent/providers/ndjson.py:14, in read_lines
          read: "Cut a byte stream into lines"
  11.2  Payloads to chunks                                      0/3
    not started (NotImplementedError)

1 of 5 passed in 0.3 s

hint: `grader hint 11 11.1`, or change line 14 and run `grader test mydir --step 11.1`
"""
    )


def test_tests_that_were_not_run_have_one_cause(course: Course) -> None:
    """The cause is said once, and every expected test is listed."""
    run = run_of(*["not run"] * 5, cause="cannot import name 'X' from 'mini_agent.y'")

    page = text(course, run, first_look=True)

    assert page == (
        """\
Checkpoint 11 · Transfer                                      mydir

not run  cannot import name 'X' from 'mini_agent.y'

  11.1  Lines from reads                                        0/2
    ----  lines: whole reads
    ----  lines: a split inside a character
  11.2  Payloads to chunks                                      0/3
    ----  payloads: one
    ----  payloads: two
    ----  payloads: three

0 of 5 passed in 0.3 s, 5 not run

Red is where every chapter starts: nothing is broken.
Read mydir/README.md. Step 11.1 comes first:
  Make one incremental decoder.

hint: `grader hint 11 11.1`, then `grader test mydir --step 11.1`; `-v` shows tracebacks
"""
    )


def test_green_leads_to_the_next_chapter(course: Course) -> None:
    """And a part that is green leads to the whole."""
    run = run_of(None, None, None, None, None)

    assert "5 of 5 passed in 0.3 s\n\nnext: `grader practice 12 NEXT --from mydir`\n" in text(
        course, run
    )
    assert text(course, run, only="--step 11.1").endswith(
        "next: the whole chapter, `grader test mydir`\n"
    )


def test_the_last_chapter_has_no_next(course: Course) -> None:
    """It says so."""
    alone = Course(course.root, course.chapters[:1], packaged=True)

    assert text(alone, run_of(None)).endswith("That was the last chapter.\n")


def test_a_command_can_be_copied(course: Course) -> None:
    """A directory with a space is quoted, and --course is repeated."""
    course.command = "grader --course '/a b'"
    run = run_of(None, None, None, None, None)

    page = report.text(dataclasses.replace(graded(course, run), directory="my dir"), PLAIN)

    assert "next: `grader --course '/a b' practice 12 NEXT --from 'my dir'`\n" in page


@pytest.mark.parametrize(
    ("directory", "new"),
    [("mydir", "NEXT"), (".", "../NEXT"), ("./", "../NEXT"), ("..", "../../NEXT"), ("a/b", "NEXT")],
)
def test_the_next_practice_is_not_made_inside_this_one(
    course: Course, directory: str, new: str
) -> None:
    """Who works in the directory itself is led out of it."""
    run = run_of(None, None, None, None, None)

    page = report.text(dataclasses.replace(graded(course, run), directory=directory), PLAIN)

    assert f"next: `grader practice 12 {new} --from {directory}`\n" in page


def test_a_course_that_is_not_the_packaged_one_is_named(course: Course) -> None:
    """So that nobody wonders whose tests ran. Warnings stand there too."""
    own = Course(course.root, course.chapters, packaged=False)

    page = text(own, run_of(None), warnings=("made from version 0.9",))

    assert page.split("\n")[1:3] == [f"course: {course.root}", "warning: made from version 0.9"]


def test_a_run_that_cannot_be_trusted_is_never_green(course: Course) -> None:
    """Whatever its tests say."""
    run = run_of(None, None, None, None, None, trusted=False, cause="pytest was patched")

    page = text(course, run)

    assert "not run  pytest was patched" in page
    assert "5 of 5 passed in 0.3 s: something changed how tests report, so nothing" in page
    assert "NEXT" not in page
    assert json.loads(report.as_json(graded(course, run)))["green"] is False
    assert xml.fromstring(report.as_junit(graded(course, run)))[0].get("errors") == "1"


def test_one_message_of_several_tests_is_said_once(course: Course) -> None:
    """Under the last of those in a row."""
    failure = Failure("TypeError: ToolCall() takes no arguments", exception="TypeError")

    page = text(course, run_of(failure, failure, None, None, None))

    assert page.count("takes no arguments") == 1
    assert page.split("\n")[3:7] == [
        "    FAIL  lines: whole reads                                 0.02 s",
        "    FAIL  lines: a split inside a character                  0.02 s",
        "          TypeError: ToolCall() takes no arguments",
        '          read: "Cut a byte stream into lines"',
    ]


def test_what_is_not_written_yet_is_no_mistake(course: Course) -> None:
    """In a step that has begun, the skeleton's own words and line say what is to be written."""
    page = text(course, run_of(None, None, None, NOT_STARTED, Failure("", exception="X")))

    assert (
        """    FAIL  payloads: two                                      0.02 s
          not written yet: step 11.2
          your code: mini_agent/providers/ndjson.py:30, in to_chunks
"""
        in page
    )


def test_a_long_value_is_cut_to_where_the_two_part(course: Course) -> None:
    """A screen of repr teaches nothing."""
    left = "[" + ", ".join(f"Item({n})" for n in range(500)) + "]"
    failure = Failure("x", expected=left, got=left.replace("Item(300)", "Item(-1)"), path="[300]")

    page = text(course, run_of(failure))

    assert "          at        [300]\n" in page
    assert max(map(len, page.split("\n"))) < 130
    assert "Item(299), Item(300), Item(301)" in page
    assert "Item(299), Item(-1), Item(301)" in page


def test_texts_of_many_lines_are_compared_by_line(course: Course) -> None:
    """Only the lines that differ, and a line around them."""
    lines = [f"line {n}" for n in range(100)]
    expected, got = "\n".join(lines), "\n".join([*lines[:50], "LINE 50", *lines[51:]])

    page = text(course, run_of(Failure("x", expected=expected, got=got)))

    assert (
        """\
                    line 49
          expected  line 50
          got       LINE 50
                    line 51
"""
        in page
    )
    assert "line 47" not in page


def test_a_long_message_is_cut_unless_verbose(course: Course) -> None:
    """-v shows all of it, and the traceback."""
    failure = Failure("\n".join(f"m{n}" for n in range(20)), traceback="Traceback: deep")

    short, long = text(course, run_of(failure)), text(course, run_of(failure), verbose=True)

    assert "m6\n" in short
    assert "m7\n" not in short
    assert "… 13 more lines with -v" in short
    assert "m19\n" in long
    assert "Traceback: deep" in long
    assert "Traceback" not in short


def test_what_a_failed_test_printed_is_shown(course: Course) -> None:
    """print is the first debugger."""
    run = run_of(SPLIT)
    run = dataclasses.replace(
        run, tests=(dataclasses.replace(run.tests[0], output="here: 正\n\x1b[2J\n"),)
    )

    page = text(course, run)

    assert "          it printed:\n            here: 正\n            \\x1b[2J\n" in page


def test_notes_are_shown_and_protections_with_v(course: Course) -> None:
    """An edited copy of the tests is named."""
    run = run_of(None, notes=("tests/test_11.py is edited",), protections=("no network",))

    assert "note: tests/test_11.py is edited\n" in text(course, run)
    assert "no network" not in text(course, run)
    assert "this run had: no network\n" in text(course, run, verbose=True)


def test_a_stretch_failure_has_its_own_advice(course: Course) -> None:
    """There is no hint for it; there is a traceback."""
    run = run_of(None, None, None, None, None)
    stretch = TestResult("test_every_byte", "every byte", "stretch", "failed", 0.5, SPLIT)

    page = text(course, dataclasses.replace(run, tests=(*run.tests, stretch)), stretch=True)

    assert "  stretch tests                                                 0/1\n" in page
    assert page.endswith(
        "hint: `grader test mydir --stretch -k test_every_byte -v` shows the traceback\n"
    )


def test_json_is_as_documented(course: Course) -> None:
    """The stable keys, with their types."""
    run = run_of(None, SPLIT, NOT_STARTED, "not run", cause="killed")

    data = json.loads(report.as_json(graded(course, run)))

    stable = ("chapter", "directory", "passed", "failed", "not_run", "seconds", "cause")
    assert {key: data[key] for key in stable} == {
        "chapter": "11",
        "directory": "mydir",
        "passed": 1,
        "failed": 2,
        "not_run": 1,
        "seconds": 0.3,
        "cause": "killed",
    }
    assert data["tests"][1] == {
        "id": "test_lines_a_split_inside_a_character",
        "title": "lines: a split inside a character",
        "step": "11.1",
        "outcome": "failed",
        "seconds": 0.02,
        "message": "expected x\ngot y",
        "where": "mini_agent/providers/ndjson.py:14, in read_lines",
    }
    assert [test["outcome"] for test in data["tests"]] == ["passed", "failed", "failed", "not run"]
    assert data["tests"][0]["message"] is None


def test_junit_is_well_formed_whatever_a_test_says(course: Course) -> None:
    """Control characters, lone surrogates and markup are spelled out."""
    awkward = Failure("a\x00b\x1b[1m\ud800<&>\ufffe]]>正", traceback="t\x08")
    run = run_of(None, awkward, "not run", cause="<killed>\x00")

    suite = xml.fromstring(report.as_junit(graded(course, run)))[0]

    cases = suite.findall("testcase")
    assert suite.attrib == {
        "name": "11-transfer",
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "skipped": "0",
        "time": "0.300",
    }
    assert [case.get("classname") for case in cases] == [
        "11-transfer.11.1",
        "11-transfer.11.1",
        "11-transfer.11.2",
    ]
    assert [[child.tag for child in case] for case in cases] == [[], ["failure"], ["error"]]
    assert cases[1][0].text is not None
    assert cases[1][0].text.startswith("a\\u0000b\\u001b[1m\\ud800<&>\\ufffe]]>正")


# The terminal


class Pipe(io.TextIOWrapper):
    """A text stream with an encoding, that may be a terminal."""

    def __init__(self, encoding: str, *, tty: bool = False) -> None:
        self.bytes = io.BytesIO()
        self.tty = tty
        super().__init__(self.bytes, encoding=encoding, newline="")

    def isatty(self) -> bool:
        return self.tty


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("utf-8", "Checkpoint 05 · 正… → \\ud800".encode()),
        ("ascii", b"Checkpoint 05 - \\u6b63... -> \\ud800"),
        ("cp1252", "Checkpoint 05 · \\u6b63… -> \\ud800".encode("cp1252")),
        ("cp932", "Checkpoint 05 - 正… → \\ud800".encode("cp932")),
    ],
)
def test_text_is_ascii_where_the_terminal_cannot_do_better(encoding: str, written: bytes) -> None:
    """No UnicodeEncodeError, whatever a learner's code printed."""
    pipe = Pipe(encoding)

    terminal.put("Checkpoint 05 · 正… → \ud800", pipe)

    assert pipe.bytes.getvalue() == written


@pytest.mark.parametrize(
    ("tty", "env", "colored"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_color_is_for_terminals_that_want_it(
    monkeypatch: pytest.MonkeyPatch, tty: bool, env: dict[str, str], colored: bool
) -> None:
    """Plain when not a terminal; NO_COLOR is honoured."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    assert terminal.wants_color(Pipe("utf-8", tty=tty)) is colored


@pytest.mark.parametrize(
    ("tty", "term", "written"),
    [
        (True, "xterm", b"\rgrading: 0 of 3 \rgrading: 1 of 3 \r\x1b[K"),
        (True, "dumb", b""),
        (False, "xterm", b""),
    ],
)
def test_progress_is_for_terminals_that_can_clear_a_line(
    monkeypatch: pytest.MonkeyPatch, tty: bool, term: str, written: bytes
) -> None:
    """An editor's window, which calls itself dumb, would show the sequence."""
    pipe = Pipe("utf-8", tty=tty)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr", pipe)

    with grading._progress(3) as on_result:
        if on_result:
            on_result(None)

    assert pipe.bytes.getvalue() == written


def test_color_changes_no_column(course: Course) -> None:
    """The same page with the codes taken out."""
    run = run_of(None, SPLIT, NOT_STARTED, NOT_STARTED, NOT_STARTED)

    colored = report.text(graded(course, run), Style(color=True))

    for code in ("\x1b[0m", "\x1b[1m", "\x1b[32m", "\x1b[31;1m", "\x1b[2m"):
        colored = colored.replace(code, "")
    assert colored == text(course, run)


def test_a_chinese_character_takes_two_columns() -> None:
    """So that the right edge stays straight."""
    assert terminal.columns("没有词 x") == 8
    assert terminal.right("没", "1/1", 10) == "没     1/1"


# The pages of the other verbs


@pytest.fixture
def toy(tmp_path: Path) -> Course:
    course = load_course(toy_course.write_course(tmp_path / "toy"))
    course.packaged = True
    course.command = "grader"
    return course


def test_the_checkpoint_page(toy: Course) -> None:
    """Everything that a learner has to know before the first line of code."""
    assert report.checkpoint(toy, toy.chapter("2"), PLAIN) == (
        """\
Checkpoint 02 · Counting
Count words.

  mode            extend, about 10 minutes
  parent          01-greeting, finished
  target          02-counting: 3 of 3 focused tests pass
  teaching files  mini_agent/greet.py
                  mini_agent/count.py
  first red       3 tests not run: cannot import name 'Count'
  first step      2.1
                  Add `Count` to mini_agent/greet.py.

  steps
    2.1  A count                                          1 to pass
    2.2  Count words                                      2 to pass

  commands
    grader practice 02 mydir           make the directory, and grade it
    grader practice 02 mydir --watch   grade it at every save
    grader test mydir --step 2.1       one step
    grader test mydir --stretch        real life too
    grader hint 02 2.1                 a hint for a step
    grader diff 02                     what the chapter adds and changes
"""
    )


def test_the_list_of_chapters(toy: Course) -> None:
    """What each is about, and how much there is to do."""
    assert report.chapter_list(toy, PLAIN) == (
        """\
  01-greeting                                      3 tests   10 min
      Say hello.
  02-counting                                      3 tests   10 min
      Count words.
  03-farewell                                       1 test    5 min
      Say goodbye.

hint: `grader practice 01 mydir` starts the first one
"""
    )


def test_long_text_is_broken_but_never_inside_code(toy: Course) -> None:
    """What stands between backticks can be copied; an indented line is code too."""
    chapter = toy.chapter("2")
    code = "`reply_stream(answer, provider=self.provider, model=self.model)`"
    long = "    indented " + "x " * 60
    told = msgspec.structs.replace(
        chapter.step("2.1"), hints=(f"Say this, and nothing else in the world: {code}.\n{long}",)
    )

    page = report.hint(toy, chapter, told, 1).split("\n")

    assert page[2:5] == ["  Say this, and nothing else in the world:", f"  {code}.", f"  {long}"]


def test_a_hint_leads_to_the_next_one(toy: Course) -> None:
    """One level at a time, and no state."""
    chapter = toy.chapter("2")

    first = report.hint(toy, chapter, chapter.step("2.2"), 1)
    last = report.hint(toy, chapter, chapter.step("2.2"), 2)

    assert first == (
        "Step 2.2 · Count words: hint 1 of 2\n\n  str.split\n\n"
        'read: "Words"\nmore: `grader hint 02 2.2 --level 2`\n'
    )
    assert "Count(len(text.split()))" in last
    assert last.endswith("that was the last one\n")
