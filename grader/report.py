"""What the grader says: a graded run as text, JSON or JUnit, and the pages of the other verbs.

Everything here turns values into text. The JSON form is stable:

    {"chapter": "05", "directory": "mydir", "passed": 9, "failed": 2, "not_run": 0, "seconds": 0.31,
     "cause": null,
     "tests": [{"id": "test_sse_...", "title": "sse: ...", "step": "5.3",
                "outcome": "passed" | "failed" | "not run", "seconds": 0.02, "message": null}, ...]}

`cause` says once why tests were not run; `message` is a failed test's, or null. `looks_like` is
null, or the known mistake that fails exactly so: {"name", "title", "misconception", "section"}.
More keys may come: today `course` (its path, null for the packaged one), `green`, `trusted`,
`notes`, `protections` and `warnings`, and in a test `where` (the learner's own line, or null).
"""

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grader.checkpoint import Change
from grader.course import Chapter, Course, Fault, Step
from grader.practice import Difference, Reset
from grader.results import Failure, Run, TestResult
from grader.terminal import Style, columns, right, visible

_VALUE = 96  # characters of one value; a longer one is cut to where the two part
_LINES = 8  # of a message, of a diff, of what a test printed
_STRETCH = "stretch"


@dataclass(frozen=True, slots=True)
class Graded:
    """A run, and what its report needs to know about where it was."""

    run: Run
    course: Course
    chapter: Chapter
    directory: str  # as the user wrote it
    only: str = ""  # the options that chose a part, such as "--step 5.2"
    stretch: bool = False
    first_look: bool = False  # the learner has written nothing yet
    lost: str | None = None  # a file that `reset` can bring back, if its absence is the cause
    warnings: tuple[str, ...] = field(default=())
    looks_like: Fault | None = None  # the known mistake that fails exactly as this run did


def text(graded: Graded, style: Style, *, verbose: bool = False) -> str:
    """The report as a learner reads it."""
    return "\n".join(_page(graded, style, verbose)) + "\n"


def _page(graded: Graded, style: Style, verbose: bool) -> Iterator[str]:
    run, chapter = graded.run, graded.chapter
    title = style.strong(f"Checkpoint {chapter.number} · {chapter.manifest.title}")
    yield right(title, visible(graded.directory))
    yield from _named(graded.course)
    for warning in graded.warnings:
        yield f"warning: {warning}"
    yield ""
    if run.cause is not None:
        yield style.bad("not run") + "  " + _first_line(run.cause)
        more = _some(visible(run.cause).split("\n")[1:], verbose)
        yield from (f"         {line}" for line in more)
        yield ""
    for step, tests in _by_step(chapter, run.tests):
        yield from _step(graded, step, tests, style, verbose)
    yield ""
    for note in run.notes:
        yield f"note: {visible(note)}"
    if verbose and run.protections:
        yield f"this run had: {', '.join(run.protections)}"
    if run.notes or (verbose and run.protections):
        yield ""
    yield _total(run, style)
    yield ""
    if graded.looks_like is not None:
        yield f"looks like: {graded.looks_like.title}"
        yield from _wrapped(graded.looks_like.misconception, "  ")
        yield f'  read: "{graded.looks_like.section}"'
        yield ""
    yield from _next(graded)


def _step(
    graded: Graded, step: Step | None, tests: Sequence[TestResult], style: Style, verbose: bool
) -> Iterator[str]:
    passed = sum(test.outcome == "passed" for test in tests)
    name = f"{step.id}  {step.title}" if step else "stretch tests"
    count = f"{passed}/{len(tests)}"
    yield right(f"  {name}", style.good(count) if passed == len(tests) else count)
    if _all_not_started(tests) and not verbose:
        yield "    not started (NotImplementedError)"
        return
    for at, test in enumerate(tests):
        yield _test_line(test, style)
        details = _details(test, step, verbose)
        following = _details(tests[at + 1], step, verbose) if at + 1 < len(tests) else []
        if details != following:  # what several tests in a row say is said once, under the last
            yield from (f"          {line}" if line else "" for line in details)


def _details(test: TestResult, step: Step | None, verbose: bool) -> list[str]:
    if test.outcome != "failed":
        return []
    failure = test.failure or Failure("failed, and said nothing")
    return list(_failure(failure, step, test.output, verbose))


def _test_line(test: TestResult, style: Style) -> str:
    label = {"passed": style.good("ok  "), "failed": style.bad("FAIL"), "not run": "----"}
    line = f"    {label[test.outcome]}  {test.title}"
    if test.outcome == "failed" or (test.outcome == "passed" and test.seconds >= 0.1):
        return right(line, f"{test.seconds:.2f} s")
    return line


def _failure(failure: Failure, step: Step | None, output: str, verbose: bool) -> Iterator[str]:
    """The few lines that teach: expected, got, the rule, the learner's line, where to read."""
    if failure.expected is not None and failure.got is not None:
        if failure.path:
            yield f"at        {visible(failure.path)}"
        yield from _short_diff(failure.expected, failure.got)
        if failure.because:
            yield from visible(failure.because).split("\n")
    elif failure.exception == "NotImplementedError":
        said = _first_line(failure.message).removeprefix("NotImplementedError").lstrip(": ")
        yield f"not written yet: {said}" if said else "not written yet"
    else:
        yield from _some(visible(failure.message).strip("\n").split("\n"), verbose)
    if failure.where:
        yield f"your code: {visible(failure.where)}"
    if step and failure.exception != "NotImplementedError":
        yield f'read: "{step.section}"'
    if output.strip():
        yield "it printed:"
        yield from (f"  {line}" for line in _some(visible(output).rstrip().split("\n"), verbose))
    if verbose and failure.traceback:
        yield ""
        yield from visible(failure.traceback).rstrip().split("\n")


def _short_diff(expected: str, got: str) -> Iterator[str]:
    """The two values; long ones are cut to where they part, texts of lines to the lines that do."""
    expected, got = visible(expected), visible(got)
    if "\n" in expected or "\n" in got:
        yield from _line_diff(expected.split("\n"), got.split("\n"))
        return
    if max(len(expected), len(got)) > _VALUE:
        same = _common(expected, got)
        expected, got = _window(expected, same), _window(got, same)
    yield f"expected  {expected}"
    yield f"got       {got}"


def _line_diff(expected: list[str], got: list[str]) -> Iterator[str]:
    import difflib

    shown = 0
    for line in difflib.unified_diff(expected, got, lineterm="", n=1):
        if line.startswith(("---", "+++", "@@")):
            continue
        if shown == _LINES:
            yield "…"
            return
        shown += 1
        label = {"-": "expected", "+": "got"}.get(line[0], "")
        yield f"{label:<10}{line[1:]}"


def _common(left: str, right: str) -> int:
    for at, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return at
    return min(len(left), len(right))


def _window(value: str, at: int) -> str:
    """At most `_VALUE` characters of `value`, with position `at` and a little before it."""
    start = 0 if len(value) <= _VALUE else max(0, at - _VALUE // 3)
    end = start + _VALUE
    return ("…" if start else "") + value[start:end] + ("…" if end < len(value) else "")


def _total(run: Run, style: Style) -> str:
    passed, total = run.count("passed"), len(run.tests)
    line = f"{passed} of {total} passed in {run.seconds:.1f} s"
    if run.count("not run"):
        line += f", {run.count('not run')} not run"
    if not run.trusted:
        return style.bad(f"{line}: something changed how tests report, so nothing here counts")
    return style.good(line) if run.green else line


def _next(graded: Graded) -> Iterator[str]:
    """What to do now."""
    run, chapter, grader = graded.run, graded.chapter, graded.course.command
    here = quoted(graded.directory)
    if run.green:
        yield from _next_when_green(graded, here)
    elif graded.first_look:
        first = chapter.manifest.first_step
        yield "Red is where every chapter starts: nothing is broken."
        yield f"Read {_join(graded.directory, 'README.md')}. Step {first.step} comes first:"
        yield from _wrapped(first.text, "  ")
        yield ""
        yield (
            f"hint: `{grader} hint {chapter.number} {first.step}`,"
            f" then `{grader} test {here} --step {first.step}`; `-v` shows tracebacks"
        )
    elif (test := _first_to_do(run)) is None:
        yield f"hint: `{grader} test {here} -v` shows more"
    elif test.step == _STRETCH:
        one = f"{grader} test {here} --stretch -k {quoted(test.name)}"
        yield f"hint: `{one} -v` shows the traceback"
    else:
        retry = f"`{grader} test {here} --step {test.step}`"
        advice = f"hint: `{grader} hint {chapter.number} {test.step}`"
        line = re.search(r":(\d+)", test.failure.where or "") if test.failure else None
        if graded.lost:
            back = f"`{grader} reset {here} {quoted(graded.lost)}`"
            yield f"hint: {graded.lost} is missing; {back} brings it back as it was at the start"
        elif test.outcome == "not run":
            yield f"hint: remove the cause above, and run {retry}"
        elif test.failure and test.failure.exception == "NotImplementedError":
            step = chapter.step(test.step)
            yield f'next: step {step.id}, {step.title}: read "{step.section}"'
            yield f"{advice}, then {retry}"
        elif line:
            yield f"{advice}, or change line {line[1]} and run {retry}"
        else:
            yield f"{advice}, then {retry}"


def _next_when_green(graded: Graded, here: str) -> Iterator[str]:
    chapter, grader = graded.chapter, graded.course.command
    following = graded.course.next(chapter)
    if graded.only:
        yield f"next: the whole chapter, `{grader} test {here}`"
        return
    if chapter.stretch_files and not graded.stretch:
        yield f"hold it to real life, if you like: `{grader} test {here} --stretch`"
    if following is None:
        yield "That was the last chapter."
    else:
        beside = quoted(_beside(graded.directory, "NEXT"))
        yield f"next: `{grader} practice {following.number} {beside} --from {here}`"


def _first_to_do(run: Run) -> TestResult | None:
    """A test that fails for a reason comes before one that is not started."""
    failed = [test for test in run.tests if test.outcome == "failed"]
    started = [test for test in failed if not _not_started(test)]
    others = [test for test in run.tests if test.outcome == "not run"]
    return next(iter((*started, *failed, *others)), None)


def _not_started(test: TestResult) -> bool:
    return test.failure is not None and test.failure.exception == "NotImplementedError"


def _all_not_started(tests: Sequence[TestResult]) -> bool:
    return all(_not_started(test) for test in tests)


def _by_step(
    chapter: Chapter, tests: Iterable[TestResult]
) -> Iterator[tuple[Step | None, list[TestResult]]]:
    """The tests under their steps, in the course's order; what belongs to none comes last."""
    tests = list(tests)
    for step in chapter.manifest.steps:
        chosen = [test for test in tests if test.step == step.id]
        if chosen:
            yield step, chosen
    known = {step.id for step in chapter.manifest.steps}
    rest = [test for test in tests if test.step not in known]
    if rest:
        yield None, rest


def _some(lines: Sequence[str], verbose: bool) -> Iterator[str]:
    if verbose or len(lines) <= _LINES:
        yield from lines
        return
    yield from lines[: _LINES - 1]
    yield f"… {len(lines) - _LINES + 1} more lines with -v"


def _first_line(message: str) -> str:
    return visible(message).strip("\n").split("\n")[0]


def _wrapped(paragraph: str, indent: str) -> list[str]:
    """Lines of text, broken where they are long; an indented line is code and stays whole."""
    lines: list[str] = []
    for line in paragraph.split("\n"):
        room = 90 - len(indent)
        if columns(line) <= room or line[:1].isspace():
            lines.append(f"{indent}{line}" if line else "")
            continue
        import textwrap

        # Code between backticks stays on one line, so that it can be copied.
        whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), line)
        broken = textwrap.wrap(whole, room, break_long_words=False, break_on_hyphens=False)
        lines += [indent + part.replace("\0", " ") for part in broken]
    return lines


def _named(course: Course) -> list[str]:
    """Every report names the course that it is about, unless it is the one of the package."""
    return [] if course.packaged else [f"course: {course.root}"]


def _tests(count: int) -> str:
    return f"{count} test" if count == 1 else f"{count} tests"


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}" if directory != "." else name


def _beside(directory: str, name: str) -> str:
    """`name` beside `directory`, and never inside it, for one who works in it (`.`, `..`)."""
    steps = os.path.normpath(directory).split(os.sep)
    if set(steps) <= {os.curdir, os.pardir}:
        return os.path.normpath(os.path.join(directory, os.pardir, name))
    return name


def quoted(argument: str) -> str:
    """`argument` as one word of a shell command."""
    return shlex.quote(argument)


# ---- JSON and JUnit


def as_json(graded: Graded) -> str:
    """The documented form, in ASCII, so that any pipe and any terminal carries it."""
    run = graded.run
    report: dict[str, Any] = {
        "chapter": graded.chapter.number,
        "directory": graded.directory,
        "passed": run.count("passed"),
        "failed": run.count("failed"),
        "not_run": run.count("not run"),
        "seconds": round(run.seconds, 3),
        "cause": run.cause,
        "green": run.green,
        "trusted": run.trusted,
        "course": None if graded.course.packaged else str(graded.course.root),
        "warnings": list(graded.warnings),
        "notes": list(run.notes),
        "protections": list(run.protections),
        "looks_like": None
        if graded.looks_like is None
        else {
            "name": graded.looks_like.name,
            "title": graded.looks_like.title,
            "misconception": graded.looks_like.misconception,
            "section": graded.looks_like.section,
        },
        "tests": [
            {
                "id": test.name,
                "title": test.title,
                "step": test.step,
                "outcome": test.outcome,
                "seconds": round(test.seconds, 3),
                "message": test.failure.message if test.failure else None,
                "where": test.failure.where if test.failure else None,
            }
            for test in run.tests
        ],
    }
    return json.dumps(report, indent=2) + "\n"


def as_junit(graded: Graded) -> str:
    """One test suite. A test that was not run is an error, with the one cause; a red one a failure.

    A run that can't be trusted carries one more error, so that no reader takes it for green.
    """
    from xml.etree import ElementTree as xml

    run, chapter = graded.run, graded.chapter
    suite = xml.Element(
        "testsuite",
        name=chapter.slug,
        tests=str(len(run.tests) + (not run.trusted)),
        failures=str(run.count("failed")),
        errors=str(run.count("not run") + (not run.trusted)),
        skipped="0",
        time=f"{run.seconds:.3f}",
    )
    properties = xml.SubElement(suite, "properties")
    values = [("directory", graded.directory)]
    values += [] if graded.course.packaged else [("course", str(graded.course.root))]
    values += [("warning", warning) for warning in graded.warnings]
    values += [("note", note) for note in run.notes]
    for name, value in values:
        xml.SubElement(properties, "property", name=name, value=in_xml(value))
    for test in run.tests:
        case = xml.SubElement(
            suite,
            "testcase",
            classname=f"{chapter.slug}.{test.step}",
            name=in_xml(test.title),
            time=f"{test.seconds:.3f}",
        )
        if test.outcome == "failed":
            failure = test.failure or Failure("failed, and said nothing")
            told = xml.SubElement(case, "failure", message=in_xml(_first_line(failure.message)))
            told.text = in_xml("\n\n".join(filter(None, (failure.message, failure.traceback))))
        elif test.outcome == "not run":
            xml.SubElement(case, "error", message=in_xml(run.cause or "not run"))
        if test.output:
            xml.SubElement(case, "system-out").text = in_xml(test.output)
    if not run.trusted:
        case = xml.SubElement(suite, "testcase", classname=chapter.slug, name="the run is trusted")
        xml.SubElement(case, "error", message="something changed how tests report")
    suites = xml.Element("testsuites")
    suites.append(suite)
    xml.indent(suites)
    body = xml.tostring(suites, encoding="unicode")
    ascii_body = body.encode("ascii", "xmlcharrefreplace").decode()
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ascii_body}\n'


def in_xml(value: str) -> str:
    """XML has no form for control characters, surrogates and U+FFFE: they are spelled out."""
    return re.sub(
        r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]",
        lambda match: f"\\u{ord(match[0]):04x}",
        value,
    )


# ---- the pages of the other verbs


def chapter_list(course: Course, style: Style) -> str:
    """Every chapter: its name, how much there is to do, and what it is about."""
    lines = [*_named(course), ""] if _named(course) else []
    for chapter in course.chapters:
        manifest = chapter.manifest
        size = f"{_tests(len(chapter.focused))}  {manifest.minutes:>3} min"
        lines.append(right(f"  {style.strong(chapter.slug)}", size))
        lines += _wrapped(manifest.summary, "      ")
    first = course.chapters[0].number
    lines += ["", f"hint: `{course.command} practice {first} mydir` starts the first one"]
    return "\n".join(lines) + "\n"


def checkpoint(course: Course, chapter: Chapter, style: Style) -> str:
    """Where a chapter starts and ends, and how to work on it."""
    manifest, number = chapter.manifest, chapter.number
    parent = course.parent(chapter)
    focused = len(chapter.focused)
    red = manifest.first_red
    lines = [
        style.strong(f"Checkpoint {number} · {manifest.title}"),
        *_named(course),
        *_wrapped(manifest.summary, ""),
        "",
        f"  mode            {manifest.mode}, about {manifest.minutes} minutes",
        f"  parent          {f'{parent.slug}, finished' if parent else 'nothing: it is the first'}",
        f"  target          {chapter.slug}: {focused} of {focused} focused tests pass",
        *_listed("teaching files", manifest.teaching_files),
        *_listed("given files", manifest.given_files),
        f"  first red       {_tests(focused)} {red.outcome}: {red.message}",
        f"  first step      {manifest.first_step.step}",
        *_wrapped(manifest.first_step.text, " " * 18),
        "",
        "  steps",
    ]
    for step in manifest.steps:
        lines.append(right(f"    {step.id}  {step.title}", f"{step.expected} to pass"))
    first = manifest.steps[0].id
    commands = {
        f"{course.command} practice {number} mydir": "make the directory, and grade it",
        f"{course.command} practice {number} mydir --watch": "grade it at every save",
        f"{course.command} test mydir --step {first}": "one step",
        f"{course.command} test mydir --stretch": "real life too",
        f"{course.command} hint {number} {first}": "a hint for a step",
        f"{course.command} diff {number}": "what the chapter adds and changes",
    }
    if not chapter.stretch_files:
        del commands[f"{course.command} test mydir --stretch"]
    wide = max(map(len, commands))
    lines += ["", "  commands"]
    lines += [f"    {command:<{wide}}   {what}" for command, what in commands.items()]
    return "\n".join(lines) + "\n"


def _listed(name: str, values: Sequence[str]) -> Iterator[str]:
    for at, value in enumerate(values):
        yield f"  {name if at == 0 else '':<14}  {value}"


def hint(course: Course, chapter: Chapter, step: Step, level: int) -> str:
    total = len(step.hints)
    lines = [f"Step {step.id} · {step.title}: hint {level} of {total}", *_named(course), ""]
    lines += _wrapped(step.hints[level - 1].strip("\n"), "  ")
    command = f"{course.command} hint {chapter.number} {step.id} --level {level + 1}"
    more = f"more: `{command}`" if level < total else "that was the last one"
    lines += ["", f'read: "{step.section}"', more]
    return "\n".join(lines) + "\n"


def diff(
    course: Course, chapter: Chapter, changes: Sequence[Change], style: Style, *, reveal: bool
) -> str:
    """The files from parent to target; their code only where it was asked for."""
    parent = course.parent(chapter)
    title = f"Checkpoint {chapter.number} · {chapter.manifest.title}"
    lines = [
        f"{title}: from {parent.slug if parent else 'nothing'} to {chapter.slug}",
        *_named(course),
        "",
    ]
    wide = max((columns(change.file) for change in changes), default=0)
    for change in changes:
        count = f"+{change.added}" + (f" -{change.removed}" if change.removed else "")
        pad = " " * (wide - columns(change.file))
        lines.append(f"  {change.kind:<7}  {change.file}{pad}  {count}")
    lines += ["", "No other file of the parent changes."] if parent else []
    if not reveal:
        lines += ["", f"hint: `{course.command} diff {chapter.number} --reveal` shows the code"]
        return "\n".join(lines) + "\n"
    for change in changes:
        lines.append("")
        lines += [_diff_line(line, style) for line in change.diff]
    return "\n".join(lines) + "\n"


def _diff_line(line: str, style: Style) -> str:
    if line.startswith(("---", "+++")):
        return style.strong(line)
    if line.startswith("@@"):
        return style.faint(line)
    if line.startswith("+"):
        return style.good(line)
    return style.bad(line) if line.startswith("-") else line


def differing(course: Course, chapter: Chapter, directory: str, found: Sequence[Difference]) -> str:
    """What `reset` without a file says."""
    if not found:
        return "Every file is as it was at the start.\n"
    lines = [f"Not as chapter {chapter.number} started:", *_named(course), ""]
    lines += [f"  {each.kind:<7}  {each.file}" for each in found]
    one = f"`{course.command} reset {quoted(directory)} {quoted(found[0].file)}`"
    lines += ["", f"hint: {one} sets one back, and keeps yours beside it"]
    return "\n".join(lines) + "\n"


def reset_done(directory: str, done: Reset) -> str:
    if done.backup is not None:
        kept = _join(directory, done.backup)
        return f"{done.file} is as it was at the start; yours is now {kept}\n"
    if done.outcome == "same":
        return f"{done.file} is as it was at the start already; nothing was changed\n"
    return f"{done.file} was missing, and is back\n"


def error(message: str, hint: str = "") -> str:
    return f"error: {visible(message)}\n" + (f"\nhint: {visible(hint)}\n" if hint else "")
