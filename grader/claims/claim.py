"""What all kinds of claims share: the claim, the job that proves it, and a chapter's workspace."""

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, get_args

from grader import checkpoint
from grader.course import Chapter, Course, Edit, Fault
from grader.practice import create_practice
from grader.results import Run, TestResult
from grader.runner import Expected, Limits

Kind: TypeAlias = Literal[
    "manifest",
    "overlay",
    "signature",
    "red",
    "green",
    "fault",
    "survivor",
    "prose",
    "demo",
    "notebook",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of the course, and whether it holds.

    `id` is stable: "05.fault.index-confusion". For a claim that fails, `found` is what is so,
    `where` the place in the course ("chapters/05-…/chapter.toml:41") and `todo` what to do.
    """

    id: str
    kind: Kind
    claim: str
    holds: bool
    where: str
    found: str = ""
    todo: str = ""
    facts: dict[str, float] = field(default_factory=dict)  # figures to print, such as a score
    listed: tuple[str, ...] = ()  # what the figures leave out, such as the mutants that survive

    @property
    def chapter(self) -> str:
        """The number that the id starts with, such as "05"."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Job:
    """Proves some claims of one kind of one chapter."""

    chapter: str
    kind: Kind
    prove: Callable[[], Iterable[Claim]]


class RunTests(Protocol):
    """Grades a directory: `runner.run_tests`, with a warm worker where the run allows it."""

    def __call__(
        self,
        directory: Path,
        expected: Sequence[Expected],
        *,
        hash_seed: int = 1,
        limits: Limits | None = None,
        on_result: Callable[[TestResult], None] | None = None,
    ) -> Run: ...


class Stopped(Exception):
    """The check ends before this claim could be proved: Ctrl+C, or `--fail-fast`."""


class Workspace:
    """One chapter under proof: its course, and scratch copies of its checkpoints.

    Copies are made once and not changed: `edited()` gives a private copy to change. What takes
    long looks at `stop` and raises Stopped.
    """

    def __init__(
        self,
        course: Course,
        chapter: Chapter,
        scratch: Path,
        run: "RunTests",
        stop: threading.Event | None = None,
    ) -> None:
        self.course = course
        self.chapter = chapter
        self.scratch = scratch
        self.run = run
        self.stop = stop or threading.Event()
        self._lock = threading.Lock()

    @property
    def number(self) -> str:
        return self.chapter.number

    def target(self) -> Path:
        """target(N)."""

        def make(at: Path) -> None:
            checkpoint.compose_target(self.course, self.chapter, at)

        return self._made("target", make)

    def parent(self) -> Path:
        """parent(N)."""

        def make(at: Path) -> None:
            checkpoint.compose_parent(self.course, self.chapter, at)

        return self._made("parent", make)

    def starter(self) -> Path:
        """What a learner begins with: a practice directory, as `grader practice` makes it."""

        def make(at: Path) -> None:
            create_practice(self.course, self.chapter, at)

        return self._made("starter", make)

    def edited(self, origin: Path, edits: Iterable[Edit | Fault]) -> Path:
        """A private copy of `origin` with `edits` made. Raises EditError where one does not fit."""
        copy = Path(tempfile.mkdtemp(dir=self.scratch, prefix="edited-"))
        shutil.copytree(origin, copy, dirs_exist_ok=True)
        for edit in edits:
            apply_edit(copy, edit)
        return copy

    def where(self, path: Path, needle: str = "") -> str:
        """`path` from the course's root, with the line on which `needle` first stands."""
        try:
            shown = path.relative_to(self.course.root).as_posix()
        except ValueError:
            shown = path.as_posix()
        line = line_of(path, needle) if needle else 0
        return f"{shown}:{line}" if line else shown

    @property
    def manifest_file(self) -> Path:
        return self.chapter.directory / "chapter.toml"

    def _made(self, name: str, make: Callable[[Path], object]) -> Path:
        with self._lock:
            at = self.scratch / name
            if not at.exists():
                part = self.scratch / f"{name}.part"  # no other job may meet a half-made copy
                part.mkdir(parents=True, exist_ok=True)
                make(part)
                part.rename(at)
            return at


class EditError(Exception):
    """An edit's `find` does not stand in its file exactly once."""


def apply_edit(directory: Path, edit: Edit | Fault) -> None:
    """Replace `edit.find` in its file. Raises EditError unless it stands there exactly once."""
    file = directory / edit.file
    if not file.is_file():
        raise EditError(f"there is no file `{edit.file}`")
    text = file.read_text(encoding="utf-8")
    count = text.count(edit.find) if edit.find else 0
    if count != 1:
        raise EditError(f"`find` stands {count} times in `{edit.file}`; it must stand there once")
    file.write_text(text.replace(edit.find, edit.replace), encoding="utf-8", newline="")


def line_of(path: Path, needle: str) -> int:
    """The number of the first line that holds the first line of `needle`; 0 if none does."""
    first = needle.strip().split("\n")[0]
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError):
        return 0
    return next((n for n, line in enumerate(lines, 1) if first in line), 0)
