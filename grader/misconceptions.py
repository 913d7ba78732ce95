"""Tell a learner which known mistake their failures look like: exactly like, or nothing is said.

Every planted fault of a chapter has a signature: which focused tests fail, and with what. A run
that has the same one gets the fault's `misconception`. A wrong guess is worse than none, so a
candidate is planted and run, and its failures must be the learner's, value for value.
"""

import re
from collections.abc import Callable
from typing import TypeAlias

from grader.course import Chapter, Fault
from grader.results import Run

Signature: TypeAlias = dict[str, tuple[str, str]]

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def recognise(chapter: Chapter, run: Run, plant: Callable[[Fault], Run]) -> Fault | None:
    """The one fault of `chapter` whose failures are exactly those of `run`, or None.

    `run` is a run of all focused tests. `plant` runs them on the target with a fault in it; it
    is called only for a fault that the manifest alone can't rule out.
    """
    likely = candidates(chapter, run)
    if len(likely) != 1:
        return None
    fault = likely[0]
    return fault if signature(plant(fault)) == signature(run) else None


def candidates(chapter: Chapter, run: Run) -> list[Fault]:
    """The faults that name exactly the tests that failed in `run`, and what each of them says.

    None where a test was not run or is not implemented yet: that is work to do, not a mistake.
    """
    if run.count("not run") or not run.count("failed") or not run.trusted:
        return []
    messages = {t.name: t.failure.message for t in run.tests if t.failure is not None}
    if any(t.failure and t.failure.exception == "NotImplementedError" for t in run.tests):
        return []
    failed = {test.name for test in run.tests if test.outcome == "failed"}
    return [
        fault
        for fault in chapter.manifest.faults
        if {catch.test for catch in fault.catches} == failed
        and all(catch.says in messages.get(catch.test, "") for catch in fault.catches)
    ]


def signature(run: Run) -> Signature:
    """What failed and what each failure was; addresses, which differ from run to run, left out."""
    return {
        test.name: (test.failure.exception, _ADDRESS.sub("0x", test.failure.message))
        for test in run.tests
        if test.outcome == "failed" and test.failure is not None
    }
