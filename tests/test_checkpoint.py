"""Checkpoints: overlays composed, and what a chapter changes."""

from pathlib import Path

import pytest
import toy_course

from grader.checkpoint import (
    changes,
    compose_parent,
    compose_target,
    files_under,
    parent_files,
    target_files,
)
from grader.course import Course, load_course


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return load_course(toy_course.write_course(tmp_path / "course"))


def contents(directory: Path) -> dict[str, str]:
    return {name: path.read_text(encoding="utf-8") for name, path in files_under(directory).items()}


def test_a_later_overlay_replaces_an_earlier_file(course: Course, tmp_path: Path) -> None:
    """target(2) has chapter 2's greet.py over chapter 1's."""
    compose_target(course, course.chapter("2"), tmp_path / "target")

    assert contents(tmp_path / "target") == {
        "mini_agent/__init__.py": toy_course.INIT,
        "mini_agent/count.py": toy_course.COUNTING_SOLUTION,
        "mini_agent/greet.py": toy_course.COUNTING_GREET,
    }


def test_the_parent_is_the_target_before(course: Course, tmp_path: Path) -> None:
    """parent(2) is target(1), and the first parent is empty."""
    compose_parent(course, course.chapter("2"), tmp_path / "second")
    compose_parent(course, course.chapter("1"), tmp_path / "first")

    assert contents(tmp_path / "second") == {
        "mini_agent/__init__.py": toy_course.INIT,
        "mini_agent/greet.py": toy_course.GREETING_SOLUTION,
    }
    assert contents(tmp_path / "first") == {}


def test_files_are_named_with_their_sources(course: Course) -> None:
    """Each file of a target is known with the overlay it comes from."""
    second = course.chapter("2")

    sources = {
        name: path.relative_to(course.root).parts[1]
        for name, path in target_files(course, second).items()
    }

    assert sources == {
        "mini_agent/__init__.py": "01-greeting",
        "mini_agent/count.py": "02-counting",
        "mini_agent/greet.py": "02-counting",
    }
    assert list(parent_files(course, second)) == ["mini_agent/__init__.py", "mini_agent/greet.py"]


def test_bytes_stay_and_caches_go(course: Course, tmp_path: Path) -> None:
    """CR, no final newline and non-UTF-8 are copied; bytecode and junk are not."""
    folder = course.root / "solutions/03-farewell"
    folder.joinpath("data.bin").write_bytes(b"\xff\r\n\x00")
    folder.joinpath("__pycache__").mkdir()
    folder.joinpath("__pycache__/farewell.cpython-311.pyc").write_bytes(b"")
    folder.joinpath("mini_agent/old.pyc").write_bytes(b"")
    folder.joinpath(".DS_Store").write_bytes(b"")

    compose_target(course, course.chapter("3"), tmp_path / "target")

    assert sorted(files_under(tmp_path / "target")) == [
        "data.bin",
        "mini_agent/__init__.py",
        "mini_agent/count.py",
        "mini_agent/farewell.py",
        "mini_agent/greet.py",
    ]
    assert (tmp_path / "target/data.bin").read_bytes() == b"\xff\r\n\x00"


def test_a_read_only_course_gives_writable_files(course: Course, tmp_path: Path) -> None:
    """A course on a read-only disk can be worked on."""
    course.root.joinpath("solutions/01-greeting/mini_agent/greet.py").chmod(0o444)

    compose_target(course, course.chapter("1"), tmp_path / "target")

    (tmp_path / "target/mini_agent/greet.py").write_text("mine")


def test_changes_count_lines(course: Course) -> None:
    """A file is added, changed or the same, with the lines that it gains and loses."""
    same = course.root / "solutions/02-counting/mini_agent/__init__.py"
    same.write_text(toy_course.INIT, encoding="utf-8")

    found = [(c.file, c.kind, c.added, c.removed) for c in changes(course, course.chapter("2"))]

    assert found == [
        ("mini_agent/__init__.py", "same", 0, 0),
        ("mini_agent/count.py", "added", 8, 0),
        ("mini_agent/greet.py", "changed", 7, 0),
    ]


def test_a_diff_is_one_that_patch_reads(course: Course) -> None:
    """The first lines of a new file's diff name it as git does."""
    (change,) = changes(course, course.chapter("3"))

    assert change.diff[:4] == (
        "--- /dev/null",
        "+++ b/mini_agent/farewell.py",
        "@@ -0,0 +1,6 @@",
        '+"""Farewells."""',
    )
