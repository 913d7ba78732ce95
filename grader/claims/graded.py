"""Claims that graded runs prove: the starter is red as stated, the target green, faults caught."""

import functools
import random
from collections.abc import Iterator
from pathlib import Path

from grader import misconceptions
from grader.claims.claim import Claim, EditError, Job, Workspace
from grader.course import Fault
from grader.results import Run, TestResult
from grader.runner import expected_focused, expected_stretch

_SEEDS = (1, 20261130)  # of two orders and two hash seeds; any two would do, but always the same


def jobs(space: Workspace) -> Iterator[Job]:
    """Red; two green runs; and all faults in one job, since they are compared with each other."""
    yield Job(space.number, "red", lambda: red_claims(space))
    for seed in _SEEDS:
        yield Job(space.number, "green", functools.partial(green_claims, space, seed))
    yield Job(space.number, "fault", lambda: fault_claims(space))


def red_claims(space: Workspace) -> Iterator[Claim]:
    """The starter passes nothing, is red as stated, and after the first step is collected whole."""
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
    red = manifest.first_red
    others = [test.name for test in run.tests if test.outcome != red.outcome]
    found = f"{len(others)} tests are not `{red.outcome}`, `{others[0]}` first" if others else ""
    said = run.cause or ""
    if red.outcome == "failed":
        said = next((text for test in run.tests if (text := _message(test))), "")
    if not found and red.message not in said:
        found = f"the report says: {said.strip() or 'nothing'}"
    yield claim(
        "first",
        f"every test is {red.outcome} first, and the report says `{red.message}`",
        found,
        "correct [first_red], or the starter",
        "[first_red]",
    )
    yield claim(
        "first-step",
        "after the first step every test is collected, and each fails on its own",
        _after_first_step(space),
        "correct [first_step], or the starter",
        "[first_step]",
    )


def _after_first_step(space: Workspace) -> str:
    try:
        directory = space.edited(space.starter(), space.chapter.manifest.first_step.edits)
    except EditError as error:
        return str(error)
    run = space.run(directory, expected_focused(space.chapter))
    if run.cause:
        return f"tests are not run: {run.cause}"
    for test in run.tests:
        failure = test.failure
        if failure is not None and failure.exception in ("ImportError", "ModuleNotFoundError"):
            return f"`{test.name}` fails by an import: {failure.message}"
    return ""


def green_claims(space: Workspace, seed: int) -> list[Claim]:
    """The target passes the focused tests of every chapter so far, and its own stretch tests."""
    expected = [e for each in space.course.up_to(space.chapter) for e in expected_focused(each)]
    expected += expected_stretch(space.chapter)
    random.Random(seed).shuffle(expected)
    run = space.run(space.target(), expected, hash_seed=seed)
    bad = [test for test in run.tests if test.outcome != "passed"]
    found = run.cause or "; ".join(f"`{test.name}`: {_message(test)}" for test in bad)
    if not run.trusted and not found:
        found = "the run cannot be trusted"
    return [
        Claim(
            id=f"{space.number}.green.seed-{seed}",
            kind="green",
            claim=f"the target passes its {len(expected)} tests in random order (seed {seed})",
            holds=run.green,
            where=space.where(space.chapter.solution),
            found=found,
            todo="correct the solution, or the test",
        )
    ]


def fault_claims(space: Workspace) -> Iterator[Claim]:
    """Each fault fails exactly the tests it lists, as it says, and no two look alike."""
    faults = space.chapter.manifest.faults
    for fault in faults:
        found, run = _planted(space, fault)
        yield _fault_claim(
            space,
            fault.name,
            f"`{fault.title}` fails {_tests(len(fault.catches))}, and no other",
            found or _unlike(fault, run),
            "correct `catches`, or the tests",
            f'name = "{fault.name}"',
        )
        if found or run is None:
            continue
        alike = [other.name for other in misconceptions.candidates(space.chapter, run)]
        yield _fault_claim(
            space,
            f"{fault.name}.told-apart",
            f"nothing else looks like `{fault.title}`",
            "" if alike == [fault.name] else f"the run looks like: {', '.join(alike) or 'nothing'}",
            "let a test tell the faults apart, or say more in `says`",
            f'name = "{fault.name}"',
        )
    caught = {catch.test for fault in faults for catch in fault.catches}
    idle = [test.name for _, test in space.chapter.focused if test.name not in caught]
    yield _fault_claim(
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


def _planted(space: Workspace, fault: Fault) -> tuple[str, Run | None]:
    try:
        return "", plant(space, fault)
    except EditError as error:
        return str(error), None


def _unlike(fault: Fault, run: Run | None) -> str:
    """How the run differs from what the fault says; "" if it does not."""
    if run is None:
        return ""
    if run.cause:
        return f"the tests are not run: {run.cause}"
    failed = {test.name: _message(test) for test in run.tests if test.outcome == "failed"}
    wanted = {catch.test for catch in fault.catches}
    found = [f"`{name}` passes" for name in sorted(wanted - failed.keys())]
    found += [f"`{name}` fails too: {failed[name]}" for name in sorted(failed.keys() - wanted)]
    for catch in fault.catches:
        if catch.test in failed and catch.says not in failed[catch.test]:
            found.append(f"`{catch.test}` says: {failed[catch.test]}")
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


def _message(test: TestResult) -> str:
    return test.failure.message.strip() if test.failure is not None else ""


def _tests(count: int) -> str:
    return f"{count} test" if count == 1 else f"{count} tests"
