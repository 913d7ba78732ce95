"""Files that somebody else put there are read without waiting and without end, or not at all."""

import os
from pathlib import Path

import pytest
from toy_practice import course, practice

from grader.errors import GraderError
from grader.files import open_up, read_regular
from grader.practice import MARKER, open_practice
from grader.runner import Limits, run_tests

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
as_a_user = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() == 0, reason="needs a user whom modes bind"
)


def test_a_regular_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    """At the limit it is read whole; one byte more, and it counts as unreadable."""
    file = tmp_path / "file"
    file.write_bytes(b"12345")

    assert read_regular(file, 5) == b"12345"
    assert read_regular(file, 4) is None


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A directory, nothing at all, a broken link and a name that no system has."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")

    for path in (tmp_path, tmp_path / "none", tmp_path / "link", Path("a\0b")):
        assert read_regular(path) is None


@needs_pipes
def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    """Nobody writes into the pipe, and /dev/zero never ends."""
    os.mkfifo(tmp_path / "pipe")

    assert read_regular(tmp_path / "pipe") is None
    assert read_regular(Path("/dev/zero")) is None


@needs_pipes
def test_a_run_reads_no_pipe_of_the_learner(tmp_path: Path) -> None:
    """Pipes beside the modules and in place of the tests' copy hold up nothing."""
    directory = practice(tmp_path)
    (directory / "tests").mkdir(exist_ok=True)
    expected = course(tmp_path)
    os.mkfifo(directory / "mini_agent" / "pipe.py")
    os.mkfifo(directory / "tests" / expected[0].file.name)
    (directory / "mini_agent" / "zero.py").symlink_to("/dev/zero")

    run = run_tests(directory, expected, limits=Limits(10, 40))

    assert run.green, run.cause


@needs_pipes
def test_a_hang_is_told_although_its_trace_is_a_pipe(tmp_path: Path) -> None:
    """Where the trusted side looks for the line that hung, learner code may have put anything."""
    hang = (
        "import os\n"
        "def add(a, b):\n"
        "    os.unlink('../trace')\n"
        "    os.mkfifo('../trace')\n"
        "    while True: pass\n"
        "def greet(name): return ''\n"
    )

    run = run_tests(practice(tmp_path, hang), course(tmp_path)[:1], limits=Limits(1, 20))

    assert [test.outcome for test in run.tests] == ["failed"]


@needs_pipes
def test_a_marker_that_is_a_pipe_is_an_error(tmp_path: Path) -> None:
    """It is no file that `grader` wrote, and it is not waited for."""
    os.mkfifo(tmp_path / MARKER)

    with pytest.raises(GraderError, match="no file that `grader` wrote"):
        open_practice(None, tmp_path)  # type: ignore[arg-type]  # not reached


@as_a_user
def test_closed_folders_are_opened_for_removal(tmp_path: Path) -> None:
    """Code that took the modes away does not leave a folder that nothing can remove."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    (tmp_path / "a" / "b").chmod(0)
    (tmp_path / "a").chmod(0)

    open_up(tmp_path)

    assert (tmp_path / "a" / "b" / "c").exists()
