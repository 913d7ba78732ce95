"""What a graded run found. Made by runner.py, shown by report.py, compared by check.py."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["passed", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one test failed, cut into the parts that a report shows.

    `message` is always there: the whole story in a few lines. `expected` and `got` are set for a
    whole-value comparison, and `because` says the rule that was broken. `where` is the
    learner's own innermost line, as "mini_agent/sse.py:14, in read_lines".
    """

    message: str
    expected: str | None = None
    got: str | None = None
    because: str | None = None
    where: str | None = None
    traceback: str = ""
    exception: str = ""  # the exception's class name
    path: str | None = None  # the place in a whole value where it differs, such as "[2].text"


@dataclass(frozen=True, slots=True)
class TestResult:
    """One expected test and what became of it."""

    __test__ = False

    name: str  # the function's name
    title: str
    step: str  # "5.2", or "stretch"
    outcome: Outcome
    seconds: float = 0.0
    failure: Failure | None = None
    output: str = ""  # what the test printed, cut at the limit with a note


@dataclass(frozen=True, slots=True)
class Run:
    """One graded run. `tests` holds every expected test, in the course's order, come what may."""

    tests: tuple[TestResult, ...]
    seconds: float
    cause: str | None = None  # why tests were not run, said once
    trusted: bool = True  # False: a canary or the record channel was tampered with
    protections: tuple[
        str, ...
    ] = ()  # what the system could enforce: "no network", "memory limit", …
    notes: tuple[str, ...] = ()  # for example: an edited copy of a test file was not used

    @property
    def green(self) -> bool:
        """Every expected test passed in a run that can be trusted."""
        return (
            self.trusted
            and bool(self.tests)
            and all(test.outcome == "passed" for test in self.tests)
        )

    def count(self, outcome: Outcome) -> int:
        return sum(test.outcome == outcome for test in self.tests)
