"""Tell a learner which known mistake their failures look like: exactly like, or nothing is said.

Every planted fault of a chapter has a signature: which focused tests fail, and with what. A run
that has the same one gets the fault's `misconception`. A wrong guess is worse than none, so a
candidate is planted and run, and its failures must be the learner's, value for value.
"""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from grader.course import Chapter, Course, Fault
from grader.results import Run, TestResult

if TYPE_CHECKING:
    from grader.runner import Limits, Warm

Signature: TypeAlias = dict[str, tuple[str, str]]

# What differs from run to run and says nothing of the code: addresses, the run's own folder, and
# today's clock in seconds, milliseconds or nanoseconds.
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_CLOCK = re.compile(r"\b1[7-9]\d{8}(?:\d{3}|\d{6}|\d{9})?\b")
_FOLDER = re.compile(r"[^\s'\"`]*[/\\]grader-\w+(?=[/\\])")


def recognise(chapter: Chapter, run: Run, plant: Callable[[Fault], Run]) -> Fault | None:
    """The one fault of `chapter` whose failures are exactly those of `run`, or None.

    `run` is a run of all focused tests. `plant` runs them on the target with a fault in it; it
    is called only for faults that the manifest alone can't rule out.
    """
    mine = signature(run)
    alike = [fault for fault in candidates(chapter, run) if signature(plant(fault)) == mine]
    return alike[0] if len(alike) == 1 else None


def candidates(chapter: Chapter, run: Run) -> list[Fault]:
    """The faults that name exactly the tests that failed in `run`, and what each of them says.

    None where a test was not run or is not implemented yet: that is work to do, not a mistake.
    """
    if run.count("not run") or not run.count("failed") or not run.trusted:
        return []
    if {test.name for test in run.tests} != {test.name for _, test in chapter.focused}:
        return []
    if any(map(is_unwritten, run.tests)):
        return []
    failed = {test.name for test in run.tests if test.outcome == "failed"}
    said = {test.name: message(test) for test in run.tests}
    return [
        fault
        for fault in chapter.manifest.faults
        if {catch.test for catch in fault.catches} == failed
        and all(catch.says in said[catch.test] for catch in fault.catches)
    ]


def signature(run: Run) -> Signature:
    """What failed and what each failure was; what differs from run to run is left out."""
    return {
        test.name: (test.failure.exception, _steady(message(test)))
        for test in run.tests
        if test.outcome == "failed" and test.failure is not None
    }


def _steady(text: str) -> str:
    text = _FOLDER.sub("", _ADDRESS.sub("0x", text))
    return _CLOCK.sub(lambda time: f"a clock of {len(time[0])} digits", text)


def message(test: TestResult) -> str:
    """What a test's failure says; "" where it did not fail."""
    return test.failure.message.strip() if test.failure is not None else ""


def is_unwritten(test: TestResult) -> bool:
    """The failure comes from a body that still raises NotImplementedError, passed on or not."""
    if test.failure is None:
        return False
    said = (test.failure.exception, test.failure.message, test.failure.got or "")
    return any("NotImplementedError" in text for text in said)


def run_planted(
    course: Course, chapter: Chapter, fault: Fault, warm: "Warm | None", limits: "Limits"
) -> Run:
    """The focused tests on the target of `chapter` with `fault` in it, in a folder of its own.

    Raises EditError where the fault doesn't fit the target.
    """
    from grader.checkpoint import compose_target
    from grader.claims.claim import apply_edit
    from grader.runner import expected_focused, run_tests

    with tempfile.TemporaryDirectory(prefix="grader-", ignore_cleanup_errors=True) as folder:
        compose_target(course, chapter, Path(folder))
        apply_edit(Path(folder), fault)
        return run_tests(Path(folder), expected_focused(chapter), warm=warm, limits=limits)


def look(
    course: Course, chapter: Chapter, run: Run, warm: "Warm | None", limits: "Limits"
) -> Fault | None:
    """What `recognise` finds, for the verbs that grade: a fault that can't be planted is none."""
    from grader.claims.claim import EditError

    def plant(fault: Fault) -> Run:
        return run_planted(course, chapter, fault, warm, limits)

    try:
        return recognise(chapter, run, plant)
    except EditError:
        return None
