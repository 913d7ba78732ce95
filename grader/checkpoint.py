"""Checkpoints are overlays: target(N) is solutions 1 to N, later files over earlier ones.

parent(N) is target(N-1), and empty for the first chapter. Files are copied byte for byte and
with this process's permissions, so that a course on a read-only disk can be worked on.
"""

import difflib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.course import Chapter, Course

_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
_SKIPPED_NAMES = frozenset({".DS_Store", "Thumbs.db"})


def files_under(folder: Path) -> dict[str, Path]:
    """The files below `folder` by relative path, sorted; none if it is not there.

    Bytecode and tools' caches are left out.
    """
    found: dict[str, Path] = {}
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
        for name in names:
            if name not in _SKIPPED_NAMES and not name.endswith((".pyc", ".pyo")):
                path = Path(directory, name)
                found[path.relative_to(folder).as_posix()] = path
    return dict(sorted(found.items()))


def target_files(course: Course, chapter: Chapter) -> dict[str, Path]:
    """The files at the end of `chapter`: their paths, and where each one's text is."""
    files: dict[str, Path] = {}
    for each in course.up_to(chapter):
        files |= files_under(each.solution)
    return dict(sorted(files.items()))


def parent_files(course: Course, chapter: Chapter) -> dict[str, Path]:
    """The files before `chapter`: the target of the chapter before it; empty for the first."""
    parent = course.parent(chapter)
    return target_files(course, parent) if parent else {}


def compose_target(course: Course, chapter: Chapter, dest: Path) -> None:
    """Write the target of `chapter` into `dest`, which may exist."""
    copy_files(target_files(course, chapter), dest)


def compose_parent(course: Course, chapter: Chapter, dest: Path) -> None:
    """Write the parent of `chapter` into `dest`, which may exist. The first has an empty one."""
    copy_files(parent_files(course, chapter), dest)


def copy_files(files: Mapping[str, Path | bytes], dest: Path) -> None:
    """Write `files`, by relative path, below `dest`. A value is a file to copy, or the content."""
    dest.mkdir(parents=True, exist_ok=True)
    made: set[Path] = set()
    for name, source in files.items():
        path = dest / name
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        if isinstance(source, bytes):
            path.write_bytes(source)
        else:
            shutil.copyfile(source, path)


@dataclass(frozen=True, slots=True)
class Change:
    """What a chapter does to one file: lines it adds, lines it takes, and the diff."""

    file: str
    kind: Literal["added", "changed", "same"]
    added: int
    removed: int
    diff: tuple[str, ...]


def changes(course: Course, chapter: Chapter) -> Iterator[Change]:
    """From parent to target: one Change for each file of the chapter's overlay."""
    before = parent_files(course, chapter)
    for name, path in files_under(chapter.solution).items():
        old = _lines(before[name]) if name in before else []
        new = _lines(path)
        # Files are named as git names them, so that `patch -p1` and editors read the diff.
        diff = tuple(
            difflib.unified_diff(
                old, new, f"a/{name}" if name in before else "/dev/null", f"b/{name}", lineterm=""
            )
        )
        body = diff[2:]
        yield Change(
            name,
            "added" if name not in before else "changed" if diff else "same",
            sum(line.startswith("+") for line in body),
            sum(line.startswith("-") for line in body),
            diff,
        )


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
