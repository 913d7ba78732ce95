"""One graded run, seen from the trusted side: start a worker, watch the clock, collect the records.

The expected tests come from the course and every one of them is in the result, whatever the
worker did; only what the course itself marks as not for this system is left out. A test passed
if, and only if, its record says so in a run whose canaries behaved. Exit codes and printed text
are shown and never believed.

Learner code and pytest share a process, which is no security boundary: this resists accidents
and the common tricks. Code that is hostile needs a container around the whole run.
"""

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from grader import sandbox
from grader.canary import Canary
from grader.course import Chapter, test_functions
from grader.errors import GraderError
from grader.explain import safe
from grader.files import open_up, read_regular
from grader.output import Output, safe_text
from grader.processes import Process, Warm
from grader.remarks import remarks
from grader.results import Failure, Outcome, Run, TestResult

__all__ = ["Expected", "Limits", "Warm", "expected_focused", "expected_stretch", "run_tests"]


@dataclass(frozen=True)
class Limits:
    """What a run may use. A test past its time fails; a run past its time ends."""

    test_seconds: float = 10.0
    run_seconds: float = 60.0
    output_bytes: int = 64 * 1024  # kept of what one test prints
    memory_bytes: int = 2 << 30
    file_bytes: int = 256 << 20


@dataclass(frozen=True)
class Expected:
    """One test function that the course expects. `file` is the course's own test file."""

    file: Path
    name: str
    title: str
    step: str


def expected_focused(chapter: Chapter) -> tuple[Expected, ...]:
    """The focused tests of a chapter, in the order of its manifest."""
    return tuple(
        Expected(chapter.focused_file, test.name, test.title, step.id)
        for step, test in chapter.focused
    )


def expected_stretch(chapter: Chapter) -> tuple[Expected, ...]:
    """The stretch tests of a chapter, in the order of its files."""
    return tuple(
        Expected(file, name, name.removeprefix("test_").replace("_", " "), "stretch")
        for file in chapter.stretch_files
        for name in test_functions(file)
    )


def run_tests(
    directory: Path,
    expected: Sequence[Expected],
    *,
    limits: Limits = Limits(),
    on_result: Callable[[TestResult], None] | None = None,
    warm: Warm | None = None,
    hash_seed: int | None = None,
) -> Run:
    """Grade `directory` (it holds `mini_agent/`) with the expected tests, in their order.

    Every expected test is in the result. `on_result` gets each as it is known, in the order in
    which the tests ran.
    Nothing is written under `directory`. Raises GraderError if there is nothing to run or to
    run it on.
    """
    began = time.monotonic()
    if not expected:
        raise GraderError("there is no test to run")
    own = None
    if warm is None:
        warm = own = Warm(preload=("pytest",), hash_seed=hash_seed).start()
    try:
        directory = directory.resolve()
        if not directory.is_dir():
            raise GraderError(f"`{directory}` is not a directory")
        with warm.lock:
            grading = _Grading(directory, expected, limits, on_result, warm, began)
            try:
                return grading.run()
            finally:
                grading.clean_up()
    finally:
        if own is not None:
            own.close()


# One run


@dataclass
class _Tally:
    """What is known of one expected test while the run goes on."""

    cases: int = 0
    passed: int = 0
    skipped: bool = False
    seconds: float = 0.0
    failure: Failure | None = None
    output: str = ""


class _Stopped(Exception):
    """A worker's part of the run is over. `cause` says why the rest of its tests did not run."""

    def __init__(self, cause: str, *, trusted: bool = True, final: bool = True) -> None:
        super().__init__(cause)
        self.cause = cause
        self.trusted = trusted
        self.final = final


class _NotStarted(_Stopped):
    """The worker died before it ran a line of the learner's: no fault of this submission."""


class _Grading:
    def __init__(
        self,
        directory: Path,
        expected: Sequence[Expected],
        limits: Limits,
        on_result: Callable[[TestResult], None] | None,
        warm: Warm,
        began: float,
    ) -> None:
        self.directory = directory
        self.expected = tuple(expected)
        self.limits = limits
        self.tell = on_result
        self.warm = warm
        self.began = began
        self.end = began + limits.run_seconds
        self.results: dict[int, TestResult] = {}
        self.elsewhere: set[int] = set()  # tests that the course does not want on this system
        self.cause: str | None = None
        self.trusted = True
        self.protections: tuple[str, ...] = ()
        self.notes: list[str] = []
        self.sources = _read_course_files(self.expected)
        self.base = Path(tempfile.mkdtemp(prefix="grader-")).resolve()
        try:
            self.copies = _copy_course_files(self.sources, self.base)
        except OSError as error:
            self.clean_up()
            raise GraderError(f"the course's tests can't be copied: {error}") from error
        self.attempts = 0

    def run(self) -> Run:
        left = self._known_to_the_course()
        while left:
            try:
                self._attempt(left)
                stopped = _Stopped("the run ended before this test")
            except _NotStarted as reason:
                if self.attempts == 1:  # an earlier run may have crippled the warm parent
                    self.warm.renew()
                    continue
                stopped = reason
            except _Stopped as reason:
                stopped = reason
            still = [k for k in left if k not in self.results]
            if not stopped.trusted:
                self.trusted, self.cause = False, stopped.cause
                break
            if stopped.final or len(still) == len(left):
                if still and self.cause is None:
                    self.cause = stopped.cause
                break
            left = still
        self._look_around()
        return self._sum_up()

    def clean_up(self) -> None:
        for pause in (0.0, 0.05, 0.2):  # Windows: a process that just ended may still hold a file
            time.sleep(pause)
            shutil.rmtree(self.base, ignore_errors=True)
            if not self.base.exists():
                return
            open_up(self.base)

    def _known_to_the_course(self) -> list[int]:
        left = []
        for k, test in enumerate(self.expected):
            if test.name in test_functions(test.file):
                left.append(k)
            else:
                self.cause = f"{test.file.name} has no test function {test.name}"
        return left

    def _attempt(self, left: list[int]) -> None:
        """Run the tests of `left` in a fresh worker. Raises _Stopped if any was left over."""
        self.attempts += 1
        work = self.base / f"run-{self.attempts}"
        work.mkdir()
        canary = Canary(work)
        nonce, marker = secrets.token_hex(16), b"\0" + secrets.token_bytes(16) + b"\0"
        tests, files = self._plan(left, canary)
        job: dict[str, Any] = {
            "nonce": nonce,
            "marker": marker.hex(),
            "directory": str(self.directory),
            "scratch": str(self.base),
            "base": str(work),
            "environment": sandbox.folders(work),
            "files": files,
            "tests": tests,
            "test_seconds": self.limits.test_seconds,
            "memory_bytes": self.limits.memory_bytes,
            "file_bytes": self.limits.file_bytes,
        }
        work.joinpath("grader.ini").write_text("[pytest]\n", encoding="utf-8")
        output = Output(marker, self.limits.output_bytes)
        process = self.warm.launch(job, output)
        listener = _Listener(self, process, output, nonce, canary, files, work, left)
        try:
            listener.listen()
        except _Died:
            listener.blame(_how_it_ended(process.stop(died=True)))
        finally:
            process.stop(died=False)
            output.close()
            self.protections = listener.protections or self.protections
            self.warm.refill()

    def _plan(
        self, left: list[int], canary: "Canary"
    ) -> tuple[list[tuple[int, str, str]], list[tuple[str, str, str]]]:
        """One worker's tests in their order, the canary's around them, and the files they need."""
        path = str(canary.file)
        first, last = -2, len(self.expected)
        tests = [(first, path, canary.fails[0]), (first + 1, path, canary.passes[0])]
        files = [(path, "canary.py", canary.source)]
        for k in left:
            source = self.expected[k].file
            copy = str(self.copies[source])
            tests.append((k, copy, self.expected[k].name))
            entry = (copy, f"tests/{source.name}", self.sources[source])
            if entry not in files:
                files.append(entry)
        tests += [(last, path, canary.passes[1]), (last + 1, path, canary.fails[1])]
        return tests, files

    def record(self, k: int, tally: _Tally) -> None:
        """A test is through."""
        test = self.expected[k]
        if tally.skipped and _has_skipif(self.sources[test.file], test.name):
            self.elsewhere.add(k)
        if tally.failure is not None:
            outcome: Outcome = "not run" if tally.skipped else "failed"
        else:
            outcome = "passed"
        result = TestResult(
            test.name, test.title, test.step, outcome, tally.seconds, tally.failure, tally.output
        )
        self.results[k] = result
        if self.tell is not None and k not in self.elsewhere:
            self.tell(result)

    def _look_around(self) -> None:
        for file, source in self.sources.items():
            if read_regular(file) != source.encode():
                self.trusted = False
                self.cause = f"the course's own {file.name} was changed while the tests ran"
            copy = self.directory / "tests" / file.name
            if copy.is_file() and read_regular(copy) != source.encode():
                self.notes.append(
                    f"tests/{file.name} differs from the course's copy; the course's copy was run"
                )
        self.notes += remarks(self.directory)

    def _sum_up(self) -> Run:
        tests = []
        for k, test in enumerate(self.expected):
            if k in self.elsewhere and len(self.elsewhere) < len(self.expected):
                self.notes.append(f"not for this system: {test.title}")
                continue
            result = self.results.get(k)
            if result is None or (not self.trusted and result.outcome == "passed"):
                result = TestResult(test.name, test.title, test.step, "not run")
            tests.append(result)
        return Run(
            tuple(tests),
            time.monotonic() - self.began,
            self.cause,
            self.trusted,
            self.protections,
            tuple(dict.fromkeys(self.notes)),
        )


class _Died(Exception):
    """The worker's channel ended before its end record."""


class _Listener:
    """Reads one worker's records and keeps its clock."""

    def __init__(
        self,
        grading: _Grading,
        process: "Process",
        output: "Output",
        nonce: str,
        canary: "Canary",
        files: list[tuple[str, str, str]],
        work: Path,
        left: list[int],
    ) -> None:
        self.grading = grading
        self.process = process
        self.output = output
        self.nonce = nonce
        self.canary = canary
        self.names = [name for _, name, _ in files]
        self.work = work
        self.left = left
        self.protections: tuple[str, ...] = ()
        self.counts: dict[int, int] = {}
        self.tallies: dict[int, _Tally] = {}
        self.loading: str | None = None
        self.running: int | None = None
        self.started = time.monotonic()
        self.deadline = self.started + max(30.0, grading.limits.test_seconds)  # Python's own start
        self.segment = 0
        self.seen: list[tuple[int, str, str]] = []  # the canaries' records

    def listen(self) -> None:
        while True:
            now = time.monotonic()
            end = min(self.deadline, self.grading.end)
            try:
                kind, body = self.process.events.get(timeout=max(0.0, end - now))
            except Empty:
                self._out_of_time()
                return
            if kind == "eof":
                raise _Died
            if kind == "tampered":
                raise _Stopped(str(body), trusted=False)
            if self._take(self._parse(body)):
                return

    def _parse(self, body: Any) -> dict[str, Any]:
        try:
            record = json.loads(body)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or record.get("nonce") != self.nonce:
            raise _Stopped("a record came that the grader's worker did not write", trusted=False)
        return record

    def _take(self, record: dict[str, Any]) -> bool:
        """Act on one record. True at the end record."""
        self.deadline = time.monotonic() + self.grading.limits.test_seconds
        match record.get("record"):
            case "hello":
                self.protections = tuple(_text(record, "protections").splitlines())
                self.protections += self.process.protections
            case "loading":
                self.loading = self.names[_number(record, "file", len(self.names))]
            case "unloadable":
                self.loading = None
                if self.grading.cause is None:
                    self.grading.cause = _text(record, "cause")
            case "collected":
                self.loading = None
                pairs = (pair.split(":") for pair in _text(record, "counts").split())
                try:
                    self.counts = {int(k): int(n) for k, n in pairs}
                except ValueError:
                    raise _nonsense() from None
            case "start":
                self.running = _whole(record, "test")
                self.started = time.monotonic()
                self.segment += 2
            case "end":
                self._end_of_test(record)
            case "tampered":
                raise _Stopped(_text(record, "message"), trusted=False)
            case "done":
                self._end_of_run(record)
                return True
            case other:
                raise _Stopped(f"an unknown record came: {other!r}", trusted=False)
        return False

    def _end_of_test(self, record: dict[str, Any]) -> None:
        k, outcome = self.running, record.get("outcome")
        self.running = None
        if k is None or record.get("test") != k:
            raise _Stopped("a test ended that had not begun", trusted=False)
        if outcome == "tampered":
            raise _Stopped(_text(record, "message"), trusted=False)
        if k < 0 or k >= len(self.grading.expected):
            self.seen.append((k, str(outcome), _text(record, "message")))
            if k < 0:
                self._check_canaries(self.seen, self.canary.opening)
            return
        if len(self.seen) < 2:
            raise _Stopped("a test ran before the canaries", trusted=False)
        tally = self.tallies.setdefault(k, _Tally())
        tally.cases += 1
        tally.seconds += time.monotonic() - self.started
        tally.output += self.output.segment(self.segment - 1)
        if outcome == "passed":
            tally.passed += 1
        elif tally.failure is None:
            tally.skipped = outcome == "skipped"
            tally.failure = _failure(record)
        self._finish(k, tally)

    def _finish(self, k: int, tally: _Tally) -> None:
        if tally.cases == self.counts.get(k, 1):
            self.grading.record(k, tally)

    def _check_canaries(
        self, seen: list[tuple[int, str, str]], right: list[tuple[int, str, str]]
    ) -> None:
        if seen != right[: len(seen)]:
            raise _Stopped(
                "a test that must fail did not, or one that must pass failed: the code changed how "
                "tests are judged",
                trusted=False,
            )

    def _end_of_run(self, record: dict[str, Any]) -> None:
        self._check_canaries(self.seen, self.canary.verdicts(len(self.grading.expected)))
        if len(self.seen) != 4:
            last = self.output.rest().strip().rpartition("\n")[2]
            told = f": {last}" if last else ""
            raise _Stopped(f"the run ended without its last canaries{told}", trusted=False)
        origin = _text(record, "origin")
        # A path need not be valid text; both sides are written alike.
        if origin and not Path(origin).is_relative_to(safe_text(safe(self.grading.directory))):
            raise _Stopped(f"mini_agent was imported from {origin}", trusted=False)

    def _out_of_time(self) -> None:
        """A limit was reached. The running test failed; what has not begun may get its turn."""
        whole = time.monotonic() >= self.grading.end
        limits = self.grading.limits
        limit = f"{limits.run_seconds:g}" if whole else f"{limits.test_seconds:g}"
        self.process.stop(died=False)
        where = _where_it_hung(self.work / "trace", self.grading.directory)
        what = "the run" if whole else "this test"
        self._end_here(
            f"took longer than {limit} s and was stopped",
            f"{what} took longer than {limit} s and was stopped",
            "Timeout",
            where,
            final=whole,
        )

    def blame(self, how: str) -> None:
        """The process ended by itself. Say which test, or which import, it was in."""
        self._end_here(
            f"ended the process ({how})",
            f"the process ended during this test ({how})",
            "ProcessEnded",
            None,
            final=False,
        )

    def _end_here(
        self, short: str, message: str, exception: str, where: str | None, *, final: bool
    ) -> None:
        grading = self.grading
        k = self.running
        if k is not None and 0 <= k < len(grading.expected):
            tally = self.tallies.setdefault(k, _Tally())
            tally.seconds += time.monotonic() - self.started
            tally.output += self.output.rest()
            tally.failure = tally.failure or Failure(message, where=where, exception=exception)
            tally.skipped = False
            grading.record(k, tally)
            cause = f"the run {short}" if final else f"{grading.expected[k].name} {short}"
            raise _Stopped(cause, final=final)
        at = f", at {where.partition(',')[0]}" if where else ""
        if final:
            raise _Stopped(f"the run {short}{at}")
        if self.loading is not None and self.loading != "canary.py":
            cause = f"importing {self.loading} {short}{at}"
            for test in self.left:
                if f"tests/{grading.expected[test].file.name}" == self.loading:
                    grading.results[test] = TestResult(
                        grading.expected[test].name,
                        grading.expected[test].title,
                        grading.expected[test].step,
                        "not run",
                    )
            if grading.cause is None:
                grading.cause = cause
            raise _Stopped(cause, final=False)
        if not self.protections:
            detail = self.output.rest().strip().splitlines()[-1:] or [""]
            raise _NotStarted(f"the worker did not start ({short}) {detail[0]}".strip())
        raise _Stopped(f"the code {short} between tests{at}", trusted=False)


# Around a run


def _has_skipif(source: str, name: str) -> bool:
    """The course itself marks this test with a `skipif`: it isn't for every system.

    Any other skip, such as one that the learner's code calls, is no pass.
    """
    import ast  # rarely needed, and a learner waits for every import

    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == name
        and any("mark.skipif(" in ast.unparse(mark) for mark in node.decorator_list)
        for node in ast.parse(source).body
    )


def _read_course_files(expected: Sequence[Expected]) -> dict[Path, str]:
    sources: dict[Path, str] = {}
    for test in expected:
        if test.file not in sources:
            try:
                sources[test.file] = test.file.read_bytes().decode("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise GraderError(
                    f"the course's test file can't be read: {test.file}: {error}"
                ) from error
    return sources


def _copy_course_files(sources: dict[Path, str], base: Path) -> dict[Path, Path]:
    """Copies of the folders that hold the test files: what learner code reaches, it may spoil."""
    folders: dict[Path, Path] = {}
    for number, folder in enumerate(dict.fromkeys(file.parent for file in sources)):
        copy = base / f"tests-{number}"
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(folder, copy, symlinks=True, ignore=ignored)
        folders[folder] = copy
    return {file: folders[file.parent] / file.name for file in sources}


def _how_it_ended(status: int) -> str:
    if status < 0:
        import signal

        try:
            return f"signal {signal.Signals(-status).name}"
        except ValueError:
            return f"signal {-status}"
    if status == sandbox.FELL_SILENT:
        return "the code closed the grader's channel"
    return f"exit code {status}"


def _where_it_hung(trace: Path, directory: Path) -> str | None:
    """The learner's innermost line in what faulthandler wrote shortly before the limit."""
    text = (read_regular(trace) or b"").decode("utf-8", "backslashreplace")
    main = text.rpartition("most recent call first")[2]
    start = f'File "{directory}{os.sep}'
    for line in main.splitlines():
        place = line.strip()
        if place.startswith(start):
            file, _, rest = place[len(start) :].partition('", line ')
            number, _, name = rest.partition(" in ")
            return f"{file.replace(os.sep, '/')}:{number}, in {name}"
    return None


def _failure(record: dict[str, Any]) -> Failure:
    def part(name: str) -> str | None:
        return _text(record, name) if name in record else None

    message = _text(record, "message")
    case = _text(record, "case")
    return Failure(
        f"{case} {message}" if case else message,
        expected=part("expected"),
        got=part("got"),
        because=part("because") or None,
        where=part("where") or None,
        traceback=_text(record, "traceback"),
        exception=_text(record, "exception"),
        path=part("path") or None,
    )


def _text(record: dict[str, Any], name: str) -> str:
    value = record.get(name, "")
    return safe_text(value) if isinstance(value, str) else ""


def _whole(record: dict[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is not int:
        raise _nonsense()
    return value


def _number(record: dict[str, Any], name: str, below: int) -> int:
    value = _whole(record, name)
    if not 0 <= value < below:
        raise _nonsense()
    return value


def _nonsense() -> _Stopped:
    return _Stopped("a record came that makes no sense", trusted=False)
