"""Claims that graded runs prove: the starter is red as stated, the target green, faults caught."""

import ast
import functools
import os
import random
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from grader import misconceptions
from grader.checkpoint import files_under
from grader.claims.claim import Claim, EditError, Job, Workspace
from grader.claims.command import run_command
from grader.course import Chapter, Fault, test_functions
from grader.misconceptions import Signature, message, signature
from grader.results import Run
from grader.runner import Expected, expected_focused, expected_stretch
from grader.sandbox import SLOW_IMPORT

SEEDS = (1, 2)  # of two orders and two hash seeds; any two would do, but always the same
_COLLECT_SECONDS = 60.0
# `python -m pytest`, without the import that a worker keeps out too: under pytest it takes 3 s.
_PYTEST = (
    f"import sys; sys.modules.setdefault({SLOW_IMPORT!r}, None); "
    "import pytest; raise SystemExit(pytest.main(sys.argv[1:]))"
)


def jobs(space: Workspace) -> Iterator[Job]:
    """Red; what comes before stays green; two green runs; one job for each fault."""
    yield Job(space.number, "red", lambda: red_claims(space))
    for seed in SEEDS:
        yield Job(space.number, "green", functools.partial(green_claims, space, seed))
    faults = space.chapter.manifest.faults
    told_apart = _ToldApart(space)
    for fault in faults:
        yield Job(space.number, "fault", functools.partial(fault_claims, space, fault, told_apart))
    yield Job(space.number, "fault", lambda: [each_test_claim(space)])


# ---- red


def red_claims(space: Workspace) -> Iterator[Claim]:
    """The practice directory is red as stated, and breaks nothing that was green."""
    manifest = space.chapter.manifest
    run = space.run(space.starter(), expected_focused(space.chapter))

    def claim(id: str, text: str, found: str, todo: str, needle: str) -> Claim:
        return Claim(
            id=f"{space.number}.red.{id}",
            kind="red",
            claim=text,
            holds=not found,
            where=space.where(space.manifest_file, needle),
            found=found,
            todo=todo,
        )

    passed = [test.name for test in run.tests if test.outcome == "passed"]
    yield claim(
        "starter",
        "no focused test passes on the starter",
        ", ".join(f"`{name}` passes" for name in passed),
        "a test that passes before any work teaches nothing: sharpen it, or empty the starter",
        passed[0] if passed else "",
    )
    yield claim(
        "first",
        f"every test is {manifest.first_red.outcome} first,"
        f" and the report says `{manifest.first_red.message}`",
        _unlike_first_red(space, run),
        "correct [first_red], or the starter",
        "[first_red]",
    )
    begun: Path | None = None
    found = ""
    try:
        begun = space.edited(space.starter(), manifest.first_step.edits)
    except EditError as error:
        found = f"an edit of [first_step] does not fit: {error}"
    yield claim(
        "first-step",
        "after the first step every test is collected, and each fails on its own",
        found if begun is None else _after_first_step(space, begun),
        "correct [first_step], or the starter",
        "[first_step]",
    )
    yield claim(
        "collected",
        "plain pytest collects exactly the declared tests in the practice directory",
        found if begun is None else _collected(space, begun),
        "a focused test is a plain function of the one test file, and not parametrised",
        "[[steps]]",
    )
    yield claim(
        "parent",
        "the starter leaves the tests of earlier chapters green",
        _broken_by_starter(space),
        "the starter must not break what it doesn't replace: correct its files",
        "given_files",
    )


def _unlike_first_red(space: Workspace, run: Run) -> str:
    red = space.chapter.manifest.first_red
    others = [test for test in run.tests if test.outcome != red.outcome]
    if others:
        count = f"{_tests(len(others))} {'is' if len(others) == 1 else 'are'} not `{red.outcome}`"
        said = message(others[0]) or run.cause or others[0].outcome
        return f"{count}, first `{others[0].name}`: {said}"
    said = run.cause or ""
    if red.outcome == "failed":
        said = next((text for test in run.tests if (text := message(test))), "")
    return "" if red.message in said else f"the report says: {said.strip() or 'nothing'}"


def _after_first_step(space: Workspace, begun: Path) -> str:
    run = space.run(begun, expected_focused(space.chapter))
    if run.cause:
        return f"tests are not run: {run.cause}"
    for test in run.tests:
        failure = test.failure
        if test.outcome == "passed":
            return f"`{test.name}` passes"
        if failure is not None and failure.exception in ("ImportError", "ModuleNotFoundError"):
            return f"`{test.name}` fails by an import: {failure.message}"
    return ""


def _collected(space: Workspace, begun: Path) -> str:
    """How plain pytest's list differs from the manifest's; "" if it does not."""
    keep = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    environment |= {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),  # where `grader` is
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-c", _PYTEST, "--collect-only", "-q", "-p", "no:cacheprovider"]
    ended = run_command(
        command, cwd=begun, env=environment, seconds=_COLLECT_SECONDS, stop=space.stop
    )
    printed = ended.output.decode("utf-8", "replace")
    listed = [line.strip() for line in printed.splitlines() if "::" in line and " " not in line]
    file = f"tests/{space.chapter.focused_file.name}"
    wanted = [f"{file}::{test.name}" for _, test in space.chapter.focused]
    if ended.status != 0 and not listed:
        return f"pytest ended with {ended.status}:\n{printed.strip()[-1000:]}"
    found = [f"`{name}` is collected" for name in listed if name not in wanted]
    found += [f"`{name}` is not collected" for name in wanted if name not in listed]
    return "; ".join(found)


def _broken_by_starter(space: Workspace) -> str:
    """Earlier focused tests that fail on the starter; "" if none does.

    A chapter whose tests reach a file that the starter replaces with a skeleton is left out: its
    tests are red until that file is written.
    """
    parents = {file for c in space.course.up_to(space.chapter)[:-1] for file in _files_of(c)}
    replaced = files_under(space.chapter.starter).keys() & parents
    replaced -= set(space.chapter.manifest.given_files)
    starter = space.starter()
    expected = [
        test
        for chapter in space.course.up_to(space.chapter)[:-1]
        if not _reached(starter, chapter.focused_file) & replaced
        for test in _focused_as_written(chapter)
    ]
    if not expected:
        return ""
    run = space.run(starter, expected)
    bad = [test for test in run.tests if test.outcome != "passed"]
    return run.cause or "; ".join(f"`{test.name}`: {message(test)}" for test in bad)


def _files_of(chapter: Chapter) -> Iterable[str]:
    return files_under(chapter.solution)


def _reached(directory: Path, test_file: Path) -> set[str]:
    """The files under `directory` that `test_file` imports, and those that they import."""
    found: set[str] = set()
    todo = [test_file]
    while todo:
        for name in _imports(todo.pop()):
            parts = name.split(".")
            for n in range(1, len(parts) + 1):
                path = "/".join(parts[:n])
                for file in (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py"):
                    if file not in found and (directory / file).is_file():
                        found.add(file)
                        todo.append(directory / file)
    return found


def _imports(file: Path) -> Iterator[str]:
    """Every module name in an import of `file`, and `a.b` for `from a import b`."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{alias.name}" for alias in names)
            case _:
                pass


# ---- green


def green_claims(space: Workspace, seed: int) -> list[Claim]:
    """The target passes the focused tests of every chapter so far, and its own stretch tests."""
    expected: list[Expected] = []
    for chapter in space.course.up_to(space.chapter):
        expected += _focused_as_written(chapter)
    expected += expected_stretch(space.chapter)
    random.Random(seed).shuffle(expected)
    run = space.run(space.target(), expected, hash_seed=seed)
    bad = [test for test in run.tests if test.outcome != "passed"]
    found = run.cause or "; ".join(f"`{test.name}`: {message(test)}" for test in bad)
    if not run.green and not found:
        found = "the run cannot be trusted"
    return [
        Claim(
            id=f"{space.number}.green.seed-{seed}",
            kind="green",
            claim=f"the target passes its {len(expected)} tests in random order (seed {seed})",
            holds=run.green,
            where=space.where(space.chapter.solution),
            found="" if run.green else found,
            todo="correct the solution, or the test",
        )
    ]


def _focused_as_written(chapter: Chapter) -> Iterator[Expected]:
    """A chapter's focused tests, read from its test file: its manifest may be broken."""
    for name in test_functions(chapter.focused_file) if chapter.focused_file.is_file() else ():
        yield Expected(chapter.focused_file, name, name, chapter.number)


# ---- faults


class _ToldApart:
    """Gathers each fault's signature; the last one to come yields the comparison of all."""

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._lock = threading.Lock()
        self._left = len(space.chapter.manifest.faults)
        self._signatures: dict[str, Signature] = {}

    def add(self, fault: Fault, found: Signature | None) -> Iterator[Claim]:
        """`found` is None where the fault was not caught as stated."""
        with self._lock:
            if found is not None:
                self._signatures[fault.name] = found
            self._left -= 1
            if self._left:
                return
        for each in self._space.chapter.manifest.faults:
            mine = self._signatures.get(each.name)
            if mine is None:
                continue
            alike = [n for n, other in self._signatures.items() if other == mine and n != each.name]
            yield _fault_claim(
                self._space,
                f"{each.name}.told-apart",
                f"no other fault looks like `{each.title}`",
                ", ".join(f"`{name}` fails the same tests with the same words" for name in alike),
                "let a test tell the faults apart, or drop one of them",
                f'name = "{each.name}"',
            )


def fault_claims(space: Workspace, fault: Fault, told_apart: _ToldApart) -> Iterator[Claim]:
    """The fault fails exactly the tests it lists, as it says, and a learner would be told so."""
    try:
        directory = space.edited(space.target(), [fault])
        run = space.run(directory, expected_focused(space.chapter))
        found = _unlike(fault, run) or _unsteady(space, fault, directory, run)
    except EditError as error:
        found, run = str(error), None
    yield _fault_claim(
        space,
        fault.name,
        f"`{fault.title}` fails {_tests(len(fault.catches))}, and no other",
        found,
        "correct `catches`, or the tests",
        f'name = "{fault.name}"',
    )
    yield from told_apart.add(fault, None if found or run is None else signature(run))


def each_test_claim(space: Workspace) -> Claim:
    """A focused test that catches no fault is not yet a test."""
    caught = {catch.test for fault in space.chapter.manifest.faults for catch in fault.catches}
    idle = [test.name for _, test in space.chapter.focused if test.name not in caught]
    return _fault_claim(
        space,
        "each-test",
        "every focused test catches at least one fault",
        ", ".join(f"`{name}` catches none" for name in idle),
        "plant a fault that the test is there to catch",
        idle[0] if idle else "[[faults]]",
    )


def plant(space: Workspace, fault: Fault) -> Run:
    """The focused tests on the target with `fault` in it. Raises EditError if it doesn't fit."""
    directory: Path = space.edited(space.target(), [fault])
    return space.run(directory, expected_focused(space.chapter))


def _unsteady(space: Workspace, fault: Fault, directory: Path, run: Run) -> str:
    """What another process, with another hash seed, says in other words; "" if nothing.

    A learner's failures are compared with the fault's, value for value: a clock or an order of a
    set in a message would keep them apart for ever.
    """
    caught = {catch.test for catch in fault.catches}
    expected = [each for each in expected_focused(space.chapter) if each.name in caught]
    mine, other = signature(run), signature(space.run(directory, expected, hash_seed=SEEDS[1]))
    return "; ".join(
        f"`{name}` says in one run: {mine[name][1]}\nand in another: {other.get(name, ('', ''))[1]}"
        for name in sorted(caught)
        if other.get(name) != mine[name]
    )


def _unlike(fault: Fault, run: Run) -> str:
    """How the run differs from what the fault says; "" if it does not."""
    if run.cause:
        return f"the tests are not run: {run.cause}"
    failed = {test.name: message(test) for test in run.tests if test.outcome == "failed"}
    wanted = {catch.test for catch in fault.catches}
    found = [f"`{name}` passes" for name in sorted(wanted - failed.keys())]
    found += [f"`{name}` fails too: {failed[name]}" for name in sorted(failed.keys() - wanted)]
    for catch in fault.catches:
        if catch.test in failed and catch.says not in failed[catch.test]:
            found.append(f"`{catch.test}` says: {failed[catch.test]}")
    if any(map(misconceptions.is_unwritten, run.tests)):
        found.append("it raises NotImplementedError, which no learner is told about")
    return "; ".join(found)


def _fault_claim(space: Workspace, id: str, text: str, found: str, todo: str, needle: str) -> Claim:
    return Claim(
        id=f"{space.number}.fault.{id}",
        kind="fault",
        claim=text,
        holds=not found,
        where=space.where(space.manifest_file, needle),
        found=found,
        todo=todo,
    )


def _tests(count: int) -> str:
    return f"{count} test" if count == 1 else f"{count} tests"
