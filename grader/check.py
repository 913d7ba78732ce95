"""Prove what the course claims, chapter by chapter and kind by kind.

Jobs run in threads, since each waits for a process: a graded run, a command, a kernel. Every thread
has a warm worker of its own. The result does not depend on how many threads there are.
"""

import concurrent.futures
import contextlib
import functools
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from grader.claims import graded, prose, recorded, survivor, written
from grader.claims.claim import KINDS, Claim, Job, Kind, Workspace
from grader.course import Chapter, Course, manifest_problems
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
    as it is proved, and None when a job is done.
    """
    kinds = tuple(only) or KINDS
    full = kinds == ("survivor",)
    claims: list[Claim] = []
    workers = jobs or os.cpu_count() or 1
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grader-check-")))
        runs = stack.enter_context(_Runs())
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(workers))
        work = [
            job
            for chapter in chapters
            for job in _jobs(Workspace(course, chapter, _folder(scratch, chapter), runs.run), full)
            if job.kind in kinds
        ]
        if on_start is not None:
            on_start(len(work))
        pending = {pool.submit(_proved, job) for job in _heaviest_first(work)}
        try:
            for done in concurrent.futures.as_completed(pending):
                for claim in done.result():
                    claims.append(claim)
                    if on_claim is not None:
                        on_claim(claim)
                if on_claim is not None:
                    on_claim(None)
                if fail_fast and not all(claim.holds for claim in claims):
                    break
        finally:
            for future in pending:
                future.cancel()
    return sorted(claims, key=lambda claim: (claim.chapter, KINDS.index(claim.kind), claim.id))


def _jobs(space: Workspace, full: bool) -> Iterator[Job]:
    """All jobs of one chapter; where its manifest is wrong, only those that show why."""
    if any(manifest_problems(space.chapter).values()):
        yield Job(space.number, "manifest", functools.partial(written.manifest_claims, space))
        return
    yield from written.jobs(space)
    yield from graded.jobs(space)
    yield from survivor.jobs(space, full=full)
    yield from prose.jobs(space)
    yield from recorded.jobs(space)


def _heaviest_first(jobs: Iterable[Job]) -> list[Job]:
    """Long jobs first: one left for the end would keep the other threads waiting."""
    order: tuple[Kind, ...] = ("survivor", "notebook", "green", "fault", "prose")
    weight = {kind: len(order) - place for place, kind in enumerate(order)}
    return sorted(jobs, key=lambda job: -weight.get(job.kind, 0))


def _proved(job: Job) -> list[Claim]:
    return list(job.prove())


def _folder(scratch: Path, chapter: Chapter) -> Path:
    folder = scratch / chapter.slug
    folder.mkdir()
    return folder


class _Runs:
    """Graded runs for many threads: one warm worker a thread, closed together."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()

    def __enter__(self) -> "_Runs":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def run(
        self,
        directory: Path,
        expected: Sequence[Expected],
        *,
        hash_seed: int | None = None,
        limits: Limits | None = None,
        on_result: Callable[[TestResult], None] | None = None,
    ) -> Run:
        """Grade `directory`: warm, unless a hash seed asks for a process of its own."""
        return run_tests(
            directory,
            expected,
            limits=limits or Limits(),
            warm=self._warm() if hash_seed is None else None,
            hash_seed=hash_seed,
            on_result=on_result,
        )

    def _warm(self) -> Warm:
        warm: Warm | None = getattr(self._local, "warm", None)
        if warm is None:
            with self._lock:
                warm = self._stack.enter_context(Warm())
            self._local.warm = warm
        return warm
