"""Prove what the course claims, chapter by chapter and kind by kind.

Jobs run in threads, since each waits for a process: a graded run, a command, a kernel. Every thread
has warm workers of its own. The result does not depend on how many threads there are.
"""

import concurrent.futures
import contextlib
import functools
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from grader.claims import graded, notebook, prose, recorded, survivor, unfinished, written
from grader.claims.claim import KINDS, Claim, Job, Kind, Stopped, Workspace
from grader.course import Chapter, Course, manifest_problems
from grader.errors import GraderError
from grader.processes import Aborted
from grader.results import Run, TestResult
from grader.runner import Expected, Limits, Warm, run_tests


def check(
    course: Course,
    chapters: Sequence[Chapter],
    *,
    only: Sequence[Kind] = (),
    jobs: int | None = None,
    fail_fast: bool = False,
    on_start: Callable[[int], None] | None = None,
    on_claim: Callable[[Claim | None], None] | None = None,
) -> list[Claim]:
    """Every claim of `chapters`, of all kinds or the kinds in `only`, in the course's order.

    `only=["survivor"]` tries every mutant; otherwise a fixed sample is tried. With `fail_fast` the
    first claim that fails ends it. `on_start` hears how many jobs there are, `on_claim` each claim
    as it is proved, and None when a job is done. At Ctrl+C, or any other exception here, what
    runs is ended and nothing is left behind.
    """
    kinds = tuple(only) or KINDS
    claims: list[Claim] = []
    with contextlib.ExitStack() as stack:
        gate = _Gate()
        stop = gate.closed
        folder = tempfile.TemporaryDirectory(prefix="grader-check-", ignore_cleanup_errors=True)
        scratch = Path(stack.enter_context(folder)).resolve()
        runs = stack.enter_context(_Runs(stop))
        pool = concurrent.futures.ThreadPoolExecutor(jobs or os.cpu_count() or 1)
        stack.enter_context(pool)
        work = [
            job
            for chapter in dict.fromkeys(chapters)
            for job in _jobs(
                Workspace(course, chapter, _folder(scratch, chapter), runs.run, stop), kinds
            )
        ]
        if set(chapters) == set(course.chapters):
            whole = [*written.course_jobs(course), *notebook.course_jobs(course, stop)]
            work += [job for job in whole if job.kind in kinds]
        work = _heaviest_first(work)
        if on_start is not None:
            on_start(len(work))
        pending: set[concurrent.futures.Future[list[Claim]]] = set()
        try:
            pending.update(pool.submit(_proved, job, gate) for job in work)
            while pending:
                # With a timeout, so that Ctrl+C gets through on Windows too.
                done, pending = concurrent.futures.wait(
                    pending, timeout=0.5, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in done:
                    for claim in future.result():
                        claims.append(claim)
                        if on_claim is not None:
                            on_claim(claim)
                    if on_claim is not None:
                        on_claim(None)
                if fail_fast and not all(claim.holds for claim in claims):
                    break
        finally:
            gate.close()
            pool.shutdown(wait=False, cancel_futures=True)
            runs.end()
            gate.wait()
    return sorted(claims, key=lambda claim: (claim.chapter, KINDS.index(claim.kind), claim.id))


def _jobs(space: Workspace, kinds: Sequence[Kind]) -> list[Job]:
    """All jobs of one chapter; where its manifest is wrong, only those that show why."""
    if any(manifest_problems(space.chapter).values()):
        # Whatever was asked for: what cannot be looked at does not hold.
        show = functools.partial(written.manifest_claims, space)
        return [Job(space.number, "manifest", show)]
    found = [*written.jobs(space), *graded.jobs(space), *unfinished.jobs(space)]
    if "survivor" in kinds:
        found += survivor.jobs(space, full=kinds == ("survivor",))
    found += prose.jobs(space)
    found += recorded.jobs(space)
    found += notebook.jobs(space)
    return [job for job in found if job.kind in kinds]


def _heaviest_first(jobs: Iterable[Job]) -> list[Job]:
    """Long jobs first: one left for the end would keep the other threads waiting."""
    order: tuple[Kind, ...] = ("survivor", "notebook", "green", "prose", "red", "fault")
    weight = {kind: len(order) - place for place, kind in enumerate(order)}
    return sorted(jobs, key=lambda job: -weight.get(job.kind, 0))


class _Gate:
    """Lets jobs in until it is closed, and waits for the last one to come out.

    The pool alone can't be waited for: where Ctrl+C comes while it starts a thread, the thread
    runs, and the pool does not know of it.
    """

    def __init__(self) -> None:
        self.closed = threading.Event()
        self._inside = 0
        self._changed = threading.Condition()

    def enter(self) -> bool:
        """Whether the job may begin. If so, it must `leave()`."""
        with self._changed:
            if self.closed.is_set():
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed.set()

    def wait(self) -> None:
        """Return when no job is inside."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside)


def _proved(job: Job, gate: _Gate) -> list[Claim]:
    """The claims of one job. What cannot be proved does not hold, and says why."""
    claims: list[Claim] = []
    if not gate.enter():
        return claims
    try:
        for claim in job.prove():
            claims.append(claim)
    except Stopped:
        pass
    except Exception as error:
        if not gate.closed.is_set():
            claims.append(_broken(job, error))
    finally:
        gate.leave()
    return claims


def _broken(job: Job, error: Exception) -> Claim:
    text = str(error) if isinstance(error, GraderError) else f"{type(error).__name__}: {error}"
    file = getattr(error, "filename", None)
    where = f"chapters/{job.chapter}-…" if file is None else str(file)
    if isinstance(error, SyntaxError) and error.lineno:
        where += f":{error.lineno}"
    return Claim(
        id=f"{job.chapter}.{job.kind}.broken",
        kind=job.kind,
        claim=f"the {job.kind} claims can be looked at",
        holds=False,
        where=where,
        found=text,
        todo="correct the file that cannot be read, or run",
    )


def _folder(scratch: Path, chapter: Chapter) -> Path:
    folder = scratch / chapter.slug
    folder.mkdir()
    return folder


class _Runs:
    """Graded runs for many threads: warm workers for each thread, closed together."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._local = threading.local()
        self._lock = threading.Lock()
        self._all: list[Warm] = []

    def __enter__(self) -> "_Runs":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for warm in self._all:
            warm.close()

    def end(self) -> None:
        """End the runs that go on, from another thread than theirs."""
        with self._lock:
            for warm in self._all:
                warm.abort()

    def run(
        self,
        directory: Path,
        expected: Sequence[Expected],
        *,
        hash_seed: int = graded.SEEDS[0],
        limits: Limits | None = None,
        on_result: Callable[[TestResult], None] | None = None,
    ) -> Run:
        """Grade `directory` in this thread's warm worker of that hash seed."""

        def tell(result: TestResult) -> None:
            if self._stop.is_set():
                raise Stopped
            if on_result is not None:
                on_result(result)

        warm = self._warm(hash_seed)
        try:
            return run_tests(
                directory, expected, limits=limits or Limits(), warm=warm, on_result=tell
            )
        except Aborted:
            raise Stopped from None

    def _warm(self, hash_seed: int) -> Warm:
        mine: dict[int, Warm] | None = getattr(self._local, "warm", None)
        if mine is None:
            mine = self._local.warm = {}
        if hash_seed not in mine:
            with self._lock:
                if self._stop.is_set():
                    raise Stopped
                mine[hash_seed] = Warm(hash_seed=hash_seed).start()
                self._all.append(mine[hash_seed])
        return mine[hash_seed]
