"""Claims that graded runs prove: the starter is red as stated, the target green, faults are caught."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from grader import misconceptions
from grader.claims.claim import Claim, EditError, Job, Kind, Workspace
from grader.course import Chapter, Fault
from grader.results import Run, TestResult
from grader.runner import Expected, Grader, expected_focused, expected_stretch

_SEEDS = (1, 20261130)  # two orders, and two hash seeds


def jobs(space: Workspace) -> Iterator[Job]:
    """Red, two green runs, and all faults, which are compared with each other."""
    yield Job(space.number, "red", lambda: red_claims(space))
    for seed in _SEEDS:
        yield Job(space.number, "green", lambda seed=seed: [green_claim(space, seed)])  # type: ignore[misc]
    yield Job(space.number, "fault", lambda: fault_claims(space))
