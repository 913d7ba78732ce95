"""One graded run, seen from the trusted side: start a worker, watch the clock, collect the records.

The expected tests come from the course and every one of them is in the result, whatever the worker did. A
test passed if, and only if, its record says so in a run whose canaries behaved. Exit codes and
printed text are shown and never believed.
"""

import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from grader import sandbox
from grader.course import Chapter, test_functions
from grader.errors import GraderError
from grader.results import Failure, Outcome, Run, TestResult

_WORKER = Path(__file__).with_name("worker.py")
_CAN_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds")
_WRITERS_ARE_KNOWN = hasattr(socket, "SO_PASSCRED") and hasattr(socket, "SCM_CREDENTIALS")
_RECORD_BYTES = 64 << 20  # of all records of a worker; more is no honest run
_PRELOAD = ("pytest", "httpx", "anyio", "jsonschema", "hypothesis")


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


class Warm:
    """A parent process that has imported what runs need, and forks a child for each.

    Runs through one Warm follow each other; for parallel runs make one for each thread. Starting it returns
    at once. Where a system can't fork, a spare worker is kept ready for the next run instead.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] = _PRELOAD,
        hash_seed: int | None = None,
        fork: bool = _CAN_FORK,
    ) -> None:
        self._preload = tuple(preload)
        self._hash_seed = hash_seed
        self._fork = fork and _CAN_FORK
        self._lock = threading.Lock()
        self._supervisor: _Supervisor | None = None
        self._spare: _Spawned | None = None

    def start(self) -> "Warm":
        """Begin to import now, while the caller does something else."""
        with self._lock:
            self._ready()
        return self

    def _ready(self) -> None:
        if self._fork:
            if self._supervisor is None:
                self._supervisor = _Supervisor(self._command("--serve"))
        elif self._spare is None:
            self._spare = _Spawned(self._command("--once"))

    def _command(self, mode: str) -> "_Command":
        arguments, added = sandbox.interpreter(self._hash_seed)
        return _Command([*arguments, str(_WORKER), mode], list(self._preload), added)

    def _launch(self, job: dict[str, Any], output: "_Output") -> "_Process":
        """A worker for this job. Only run_tests calls it, holding the lock."""
        self._ready()
        if self._supervisor is not None:
            try:
                if self._supervisor.usable:
                    return self._supervisor.launch(job, output)
            except OSError:
                pass
            # It was killed, or interrupted in the middle of a word.
            self._supervisor.close()
            self._supervisor = _Supervisor(self._command("--serve"))
            return self._supervisor.launch(job, output)
        assert self._spare is not None
        worker, self._spare = self._spare, None
        worker.launch(job, output)
        return worker

    def _refill(self) -> None:
        if not self._fork and self._spare is None:
            self._spare = _Spawned(self._command("--once"))

    def close(self) -> None:
        """End the parent and whatever a run has left."""
        with self._lock:
            if self._supervisor is not None:
                self._supervisor.close()
                self._supervisor = None
            if self._spare is not None:
                self._spare.stop(died=False)
                self._spare = None

    def __enter__(self) -> "Warm":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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

    Every expected test is in the result. `on_result` gets each as it is known, in the order in which the tests ran.
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
        with warm._lock:
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
        self.cause: str | None = None
        self.trusted = True
        self.protections: tuple[str, ...] = ()
        self.notes: list[str] = []
        self.sources = _read_course_files(self.expected)
        self.base = Path(tempfile.mkdtemp(prefix="grader-")).resolve()
        self.copies = _copy_course_files(self.sources, self.base)
        self.attempts = 0

    def run(self) -> Run:
        left = self._known_to_the_course()
        while left:
            try:
                self._attempt(left)
                stopped = _Stopped("the run ended before this test")
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

    def _known_to_the_course(self) -> list[int]:
        left = []
        for k, test in enumerate(self.expected):
            if test.name in test_functions(test.file):
                left.append(k)
            else:
                self.cause = f"{test.file.name} has no test function {test.name}"
        return left

    def _attempt(self, left: list[int]) -> None:
        """Run the tests of `left` in a fresh worker. Returns when all is recorded, or raises _Stopped."""
        self.attempts += 1
        self.base.joinpath("grader.ini").write_text("[pytest]\n", encoding="utf-8")
        work = self.base / f"run-{self.attempts}"
        work.mkdir()
        canary = _Canary(work)
        nonce, marker = secrets.token_hex(16), b"\0" + secrets.token_bytes(16) + b"\0"
        tests, files = self._plan(left, canary)
        job: dict[str, Any] = {
            "nonce": nonce,
            "marker": marker.hex(),
            "directory": str(self.directory),
            "base": str(work),
            "environment": sandbox.folders(work),
            "files": files,
            "tests": tests,
            "test_seconds": self.limits.test_seconds,
            "memory_bytes": self.limits.memory_bytes,
            "file_bytes": self.limits.file_bytes,
        }
        work.joinpath("grader.ini").write_text("[pytest]\n", encoding="utf-8")
        output = _Output(marker, self.limits.output_bytes)
        process = self.warm._launch(job, output)
        listener = _Listener(self, process, output, nonce, canary, files, work, left)
        try:
            listener.listen()
        except _Died:
            listener.blame(_how_it_ended(process.stop(died=True)))
        finally:
            process.stop(died=False)
            output.close()
            self.protections = listener.protections or self.protections
            self.warm._refill()

    def _plan(
        self, left: list[int], canary: "_Canary"
    ) -> tuple[list[tuple[int, str, str]], list[tuple[str, str, str]]]:
        """The tests of one worker in their order, the canary's around them, and the files they need."""
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
        if tally.failure is not None:
            outcome: Outcome = "not run" if tally.skipped else "failed"
        else:
            outcome = "passed"
        result = TestResult(
            test.name, test.title, test.step, outcome, tally.seconds, tally.failure, tally.output
        )
        self.results[k] = result
        if self.tell is not None:
            self.tell(result)

    def _look_around(self) -> None:
        for file, source in self.sources.items():
            try:
                intact = file.read_bytes() == source.encode()
            except OSError:
                intact = False
            if not intact:
                self.trusted = False
                self.cause = f"the course's own {file.name} was changed while the tests ran"
            copy = self.directory / "tests" / file.name
            if copy.is_file() and _bytes_of(copy) != source.encode():
                self.notes.append(
                    f"tests/{file.name} differs from the course's copy; the course's copy was run"
                )
        self.notes += _remarks(self.directory)

    def _sum_up(self) -> Run:
        tests = []
        for k, test in enumerate(self.expected):
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
        process: "_Process",
        output: "_Output",
        nonce: str,
        canary: "_Canary",
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
                self.counts = {int(k): int(n) for k, n in pairs}
            case "start":
                self.running = int(record["test"])
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
            raise _Stopped("the run ended without its last canaries", trusted=False)
        origin = _text(record, "origin")
        if origin and not Path(origin).is_relative_to(self.grading.directory):
            raise _Stopped(f"mini_agent was imported from {origin}", trusted=False)

    def _out_of_time(self) -> None:
        """A limit was reached. The test that was running has failed; what has not begun may get its turn."""
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
            raise _Stopped(f"the worker did not start ({short}) {detail[0]}".strip())
        raise _Stopped(f"the code {short} between tests{at}", trusted=False)


# Around a run


class _Canary:
    """Two tests that must fail and two that must pass, under names that nothing can know beforehand."""

    def __init__(self, work: Path) -> None:
        names = [f"test_{secrets.token_hex(6)}" for _ in range(4)]
        self.fails, self.passes = names[:2], names[2:]
        self.secret = secrets.token_hex(8)
        self.source = _CANARY.format(
            fail_1=self.fails[0],
            fail_2=self.fails[1],
            pass_1=self.passes[0],
            pass_2=self.passes[1],
            secret=self.secret,
        )
        self.file = work / f"canary_{secrets.token_hex(4)}.py"
        self.file.write_text(self.source, encoding="utf-8")
        self.opening = [(-2, "failed", self.secret), (-1, "passed", "")]

    def verdicts(self, last: int) -> list[tuple[int, str, str]]:
        return [*self.opening, (last, "passed", ""), (last + 1, "failed", self.secret)]


_CANARY = """
import pytest

from grader.testing import assert_same, fail

class Yes(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = str.__hash__

def different(): assert [1] == [2]
def not_true(): assert not [1]
def not_raised():
    with pytest.raises(ValueError): pass
def failing(): pytest.fail("no")
def sentence(): fail("no")
def claims(): assert_same(Yes("a"), "b")
def inside(): assert_same([{{"a": Yes("b")}}], [{{"a": "b"}}])
def shorter(): assert_same((1,), (1, 2))

def must_fail():
    for probe in (different, not_true, not_raised, failing, sentence, claims, inside, shorter):
        try:
            probe()
        except BaseException as error:
            if type(error).__name__ in ("Skipped", "Exit"): return
        else:
            return
    raise AssertionError("{secret}")

def must_pass():
    assert [1, "a"] == [1, "a"]
    assert_same([{{"a": (1, None)}}], [{{"a": (1, None)}}])
    with pytest.raises(ValueError): int("x")

def {fail_1}(): must_fail()
def {pass_1}(): must_pass()
def {pass_2}(): must_pass()
def {fail_2}(): must_fail()
"""


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
    """Copies of the folders that hold the test files: what learner code could reach, it may spoil."""
    folders: dict[Path, Path] = {}
    for number, folder in enumerate(dict.fromkeys(file.parent for file in sources)):
        copy = base / f"tests-{number}"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        folders[folder] = copy
    return {file: folders[file.parent] / file.name for file in sources}


def _bytes_of(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _how_it_ended(status: int) -> str:
    if status < 0:
        import signal

        try:
            return f"signal {signal.Signals(-status).name}"
        except ValueError:
            return f"signal {-status}"
    return f"exit code {status}"


def _where_it_hung(trace: Path, directory: Path) -> str | None:
    """The learner's innermost line in what faulthandler wrote shortly before the limit."""
    text = (_bytes_of(trace) or b"").decode("utf-8", "backslashreplace")
    main = text.rpartition("most recent call first")[2]
    start = f'File "{directory}{os.sep}'
    for line in main.splitlines():
        place = line.strip()
        if place.startswith(start):
            file, _, rest = place[len(start) :].partition('", line ')
            number, _, name = rest.partition(" in ")
            return f"{file.replace(os.sep, '/')}:{number}, in {name}"
    return None


_TELLING = (b"_getframe", b"inspect", b"ctypes", b"_exit", b"__eq__", b"gc")


def _remarks(directory: Path) -> list[str]:
    """Things in the learner's code that a reader of the report should know of. They change no verdict."""
    notes: list[str] = []
    for file in sorted(directory.glob("mini_agent/**/*.py")):
        source = _bytes_of(file)
        if source is None or not any(word in source for word in _TELLING):
            continue
        notes += _remarks_on(source, file.relative_to(directory).as_posix())
    return notes


def _remarks_on(source: bytes, name: str) -> list[str]:
    import ast

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    notes = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                used = [
                    a.name for a in names if a.name.partition(".")[0] in ("inspect", "gc", "ctypes")
                ]
                notes += [f"{name}:{node.lineno} imports {module}" for module in used]
            case ast.ImportFrom(module=module) if module in ("inspect", "gc", "ctypes"):
                notes.append(f"{name}:{node.lineno} imports {module}")
            case ast.Attribute(attr="_getframe"):
                notes.append(f"{name}:{node.lineno} looks at its caller's frame")
            case ast.Attribute(value=ast.Name(id="os"), attr="_exit"):
                notes.append(f"{name}:{node.lineno} calls os._exit")
            case ast.FunctionDef(name="__eq__"):
                notes.append(f"{name}:{node.lineno} defines __eq__, which no test asks")
    return notes


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


def _number(record: dict[str, Any], name: str, below: int) -> int:
    value = record.get(name)
    if type(value) is int and 0 <= value < below:
        return value
    raise _Stopped("a record came that makes no sense", trusted=False)


def safe_text(text: str) -> str:
    """`text` for any terminal or file: control characters and lone surrogates are written out."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char in "\n\t"
        or char >= " "
        and not "\x7f" <= char < "\xa0"
        and not "\ud800" <= char < "\ue000"
        else f"\\x{ord(char):02x}"
        if ord(char) < 256
        else f"\\u{ord(char):04x}"
        for char in text
    )


# Processes and channels


class _Clip:
    """The start and the end of a stream of bytes, and how many there were between."""

    def __init__(self, limit: int) -> None:
        self._room = limit * 3 // 4
        self._keep = limit - self._room
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes | memoryview) -> None:
        self._total += len(data)
        room = self._room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data):
            self._tail += data[-self._keep :]
            if len(self._tail) > self._keep:
                del self._tail[: len(self._tail) - self._keep]

    def text(self) -> str:
        cut = self._total - len(self._head) - len(self._tail)
        head, tail = (
            bytes(part).decode("utf-8", "backslashreplace") for part in (self._head, self._tail)
        )
        middle = f"\n[{cut} bytes cut]\n" if cut > 0 else ""
        return safe_text((head + middle + tail).replace("\r\n", "\n"))


class _Output:
    """What a worker prints, cut into segments by the marker it writes around each test."""

    def __init__(self, marker: bytes, limit: int) -> None:
        self._marker = marker
        self._limit = limit
        self._done: list[str] = []
        self._clip = _Clip(limit)
        self._held = b""
        self._closed = False
        self._changed = threading.Condition()

    def feed(self, data: bytes) -> None:
        data = self._held + data
        with self._changed:
            while (at := data.find(self._marker)) >= 0:
                self._clip.add(data[:at])
                self._done.append(self._clip.text())
                self._clip = _Clip(self._limit)
                data = data[at + len(self._marker) :]
                self._changed.notify_all()
            keep = _overlap(data, self._marker)
            self._held = data[len(data) - keep :]
            self._clip.add(data[: len(data) - keep])

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def segment(self, number: int) -> str:
        """The output between two markers. It is on its way when it is asked for."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._done) > number, timeout=1.0)
            return self._done[number] if number < len(self._done) else ""

    def rest(self) -> str:
        """What came since the last marker, after the process was stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, timeout=0.3)
            self._clip.add(self._held)
            self._held = b""
            return self._clip.text()


def _overlap(data: bytes, marker: bytes) -> int:
    """How many bytes at the end of `data` may be the start of a marker."""
    for size in range(min(len(marker) - 1, len(data)), 0, -1):
        if data.endswith(marker[:size]):
            return size
    return 0


@dataclass
class _Command:
    arguments: list[str]
    preload: list[str]
    added: dict[str, str] = field(default_factory=dict)

    def popen(self, channel: int, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.arguments, str(channel), *self.preload],
            env=sandbox.environment() | self.added,
            cwd=tempfile.gettempdir(),
            **options,
        )


class _Process:
    """A worker that has its job: the events it sends, and a way to end it with all it started."""

    protections: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.events: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def stop(self, *, died: bool) -> int:
        """End it if it has not ended, with what it left. Returns its exit status."""
        raise NotImplementedError


class _Supervisor:
    """The warm parent, and its control channel. When that channel closes, it ends all its children."""

    def __init__(self, command: _Command) -> None:
        self._control, theirs = socket.socketpair()
        self._busy = False
        with theirs:
            self._process = command.popen(
                theirs.fileno(),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def launch(self, job: dict[str, Any], output: _Output) -> "_Forked":
        body = json.dumps(job).encode()
        records, their_records = socket.socketpair()
        if _WRITERS_ARE_KNOWN:  # before the first byte: one sent earlier carries no writer
            records.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        printed, their_output = socket.socketpair()
        with their_records, their_output:
            self._busy = True
            socket.send_fds(
                self._control,
                [struct.pack("!cI", b"R", len(body))],
                [their_records.fileno(), their_output.fileno()],
            )
            self._control.sendall(body)
            pid = self._reply()
        return _Forked(self, pid, records, printed, output)

    def ask(self, kind: bytes) -> int:
        """Have the running child ended. Returns its exit status."""
        self._busy = True
        self._control.sendall(struct.pack("!cI", kind, 0))
        return self._reply()

    @property
    def usable(self) -> bool:
        """It lives, and no answer of it is outstanding."""
        return not self._busy and self._process.poll() is None

    def _reply(self) -> int:
        answer = b""
        while len(answer) < 4:
            piece = self._control.recv(4 - len(answer))
            if not piece:
                raise ConnectionResetError("the supervisor is gone")
            answer += piece
        self._busy = False
        return int(struct.unpack("!i", answer)[0])

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Forked(_Process):
    """A child of the supervisor."""

    protections = ("stray processes are ended",) if sys.platform == "linux" else ()

    def __init__(
        self,
        supervisor: _Supervisor,
        pid: int,
        records: socket.socket,
        printed: socket.socket,
        output: _Output,
    ) -> None:
        super().__init__()
        self._supervisor = supervisor
        self._status: int | None = None
        self._sockets = (records, printed)
        receive = _receiver(records, pid)
        self._threads = (
            threading.Thread(target=_read_records, args=(receive, self.events), daemon=True),
            threading.Thread(target=_read_output, args=(printed.recv, output), daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def stop(self, *, died: bool) -> int:
        if self._status is None:
            try:
                self._status = self._supervisor.ask(b"D" if died else b"S")
            except OSError:
                self._status = -9
            for thread, sock in zip(self._threads, self._sockets, strict=True):
                thread.join(timeout=0.5)  # it ends with the last process that holds the other side
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                thread.join(timeout=0.5)
                sock.close()
        return self._status


def _receiver(records: socket.socket, pid: int) -> Callable[[], bytes]:
    """Reads records. On Linux the kernel says which process wrote each piece; a stranger's is refused."""
    if not _WRITERS_ARE_KNOWN:
        return lambda: records.recv(1 << 16)
    room = socket.CMSG_SPACE(struct.calcsize("3i"))

    def receive() -> bytes:
        data, extra, _, _ = records.recvmsg(1 << 16, room)
        for level, kind, value in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                writer = struct.unpack("3i", value[:12])[0]
                if data and writer != pid:
                    raise _Stranger(f"process {writer}, which is not the worker, wrote a record")
        return data

    return receive


class _Stranger(Exception):
    """A record came from another process than the worker."""


def _read_records(receive: Callable[[], bytes], events: "SimpleQueue[tuple[str, Any]]") -> None:
    held = bytearray()
    total = 0
    while True:
        try:
            data = receive()
        except _Stranger as stranger:
            events.put(("tampered", str(stranger)))
            return
        except OSError:
            data = b""
        if not data:
            events.put(("eof", None))
            return
        total += len(data)
        held += data
        if total > _RECORD_BYTES:
            events.put(("tampered", "far more records came than an honest run writes"))
            return
        while len(held) >= 4:
            size = int.from_bytes(held[:4], "big")
            if len(held) < 4 + size:
                break
            events.put(("record", bytes(held[4 : 4 + size])))
            del held[: 4 + size]


def _read_output(receive: Callable[[int], bytes], output: _Output) -> None:
    while True:
        try:
            data = receive(1 << 18)
        except OSError:
            data = b""
        if not data:
            output.close()
            return
        output.feed(data)


class _Spawned(_Process):
    """A worker started as a process of its own, for systems that cannot fork. It waits for its job on stdin."""

    def __init__(self, command: _Command) -> None:
        super().__init__()
        self._reading, writing = os.pipe()
        options: dict[str, Any] = {}
        if sys.platform == "win32":
            import msvcrt

            handle = msvcrt.get_osfhandle(writing)
            os.set_handle_inheritable(handle, True)
            startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})
            options = {
                "startupinfo": startup,
                "creationflags": subprocess.CREATE_NEW_PROCESS_GROUP,
            }
            channel = handle
        else:
            options = {"pass_fds": (writing,), "start_new_session": True}
            channel = writing
        try:
            self._process = command.popen(
                channel,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                **options,
            )
        finally:
            os.close(writing)
        self._threads: tuple[threading.Thread, ...] = ()

    def launch(self, job: dict[str, Any], output: _Output) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        printed, reading = self._process.stdout.fileno(), self._reading
        self._threads = (
            threading.Thread(
                target=_read_records,
                args=(lambda: os.read(reading, 1 << 16), self.events),
                daemon=True,
            ),
            threading.Thread(
                target=_read_output, args=(lambda size: os.read(printed, size), output), daemon=True
            ),
        )
        for thread in self._threads:
            thread.start()
        try:
            with self._process.stdin as stdin:
                stdin.write(json.dumps(job).encode())
        except OSError:
            return  # it died; the readers see that

    def stop(self, *, died: bool) -> int:
        if died:
            try:
                self._process.wait(timeout=0.3)
            except subprocess.TimeoutExpired:
                pass
        _kill_tree(self._process)
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass
        for thread in self._threads:
            thread.join(timeout=0.5)
        if not any(thread.is_alive() for thread in self._threads):
            # a stray that holds a pipe keeps a reader waiting; closing under it would be worse
            if self._process.stdout is not None and not self._process.stdout.closed:
                self._process.stdout.close()
            if self._reading >= 0:
                os.close(self._reading)
                self._reading = -1
        return self._process.returncode


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        if process.poll() is None:
            subprocess.run(
                ["taskkill", "/F", "/T", "/PID", str(process.pid)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
    else:
        import signal

        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    if process.poll() is None:
        process.kill()
    process.wait()
