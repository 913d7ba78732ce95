"""Practice directories: made whole or not at all, and a learner's file is never written over."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import toy_course

from grader.checkpoint import files_under
from grader.course import Course, load_course
from grader.errors import GraderError
from grader.practice import (
    MARKER,
    Difference,
    Practice,
    Reset,
    create_practice,
    differences,
    export_target,
    is_untouched,
    missing_from,
    open_practice,
    reset_file,
)

GREET = "mini_agent/greet.py"


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return load_course(toy_course.write_course(tmp_path / "course"))


@pytest.fixture
def second(course: Course, tmp_path: Path) -> Practice:
    """A new practice of chapter 02."""
    return create_practice(course, course.chapter("2"), tmp_path / "mydir")


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file below `directory`, hidden ones too."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_a_practice_is_parent_starter_tests_and_readme(second: Practice) -> None:
    """The whole directory, file by file."""
    files = snapshot(second.directory)

    assert sorted(files) == [
        ".grader.toml",
        "README.md",
        "mini_agent/__init__.py",
        "mini_agent/count.py",
        "mini_agent/greet.py",
        "pyproject.toml",
        "tests/stretch_02_counting.py",
        "tests/test_02_counting.py",
    ]
    assert files["mini_agent/greet.py"].decode() == toy_course.GREETING_SOLUTION
    assert files["mini_agent/count.py"].decode() == toy_course.COUNTING_STARTER
    assert files["README.md"].decode() == toy_course.COUNTING_README


def test_a_link_to_another_chapter_becomes_its_words(course: Course, tmp_path: Path) -> None:
    """There is no other chapter beside a practice; links inside the text stay."""
    readme = course.chapter("2").readme
    text = readme.read_text(encoding="utf-8")
    readme.write_text(
        f"{text}\nNext: [chapter 03](../03-x/README.md), see [above](#counting) or"
        " [the web](https://example.org/../x).\n",
        encoding="utf-8",
    )

    made = create_practice(course, course.chapter("2"), tmp_path / "mydir")

    assert (made.directory / "README.md").read_text(encoding="utf-8") == (
        f"{text}\nNext: chapter 03, see [above](#counting) or [the web](https://example.org/../x).\n"
    )
    assert differences(course, made) == []


def test_the_first_chapter_starts_from_nothing(course: Course, tmp_path: Path) -> None:
    """There the starter brings everything."""
    first = create_practice(course, course.chapter("1"), tmp_path / "mydir")

    package = files_under(first.directory / "mini_agent")
    assert sorted(package) == ["__init__.py", "greet.py"]


def test_a_practice_is_recognised(course: Course, second: Practice) -> None:
    """The marker says chapter and version."""
    found = open_practice(course, second.directory)

    assert (found.chapter.slug, found.version) == ("02-counting", course.version)
    assert found.warning(course) == ""


def test_another_version_is_a_warning(course: Course, second: Practice) -> None:
    """The tests are the course's of today, and the report says so."""
    marker = second.directory / MARKER
    toy_course.edit(marker, f'"{course.version}"', '"0.9.0"')

    warning = open_practice(course, second.directory).warning(course)

    assert "was made from version 0.9.0 of the course" in warning


def test_an_export_is_the_target_with_its_tests(course: Course, tmp_path: Path) -> None:
    """The finished package stands beside the chapter's tests."""
    done = export_target(course, course.chapter("2"), tmp_path / "done")

    assert (done.directory / GREET).read_text(encoding="utf-8") == toy_course.COUNTING_GREET
    assert (done.directory / "tests/test_02_counting.py").is_file()
    assert open_practice(course, done.directory).origin == "target"


def test_nothing_else_is_left_beside_it(course: Course, second: Practice, tmp_path: Path) -> None:
    """The temporary folder is gone, and the directory has the usual permissions."""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["course", "mydir"]
    usual = tmp_path / "usual"
    usual.mkdir()
    assert stat.S_IMODE(second.directory.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_missing_folders_above_are_made(course: Course, tmp_path: Path) -> None:
    """`grader practice 05 a/b/mydir` makes a and b."""
    made = create_practice(course, course.chapter("1"), tmp_path / "a" / "b" / "mydir")

    assert (made.directory / MARKER).is_file()


def test_an_empty_directory_is_filled_in_place(course: Course, tmp_path: Path) -> None:
    """It may be somebody's working directory, so it is not replaced by another one."""
    directory = tmp_path / "empty"
    directory.mkdir()
    before = directory.stat().st_ino

    create_practice(course, course.chapter("1"), directory)

    assert directory.stat().st_ino == before
    assert sorted(os.listdir(directory)) == sorted(
        [".grader.toml", "README.md", "mini_agent", "pyproject.toml", "tests"]
    )


@pytest.mark.parametrize(
    "name",
    ["with space", "目录", 'it\'s "quoted" $HOME `x`', "-v", "x" * 200, "a;b&c|d", "%s{0}"],
    ids=["space", "cjk", "quotes", "dash", "long", "shell", "format"],
)
def test_any_name_works(course: Course, tmp_path: Path, name: str) -> None:
    """What a file system takes is a directory's name."""
    made = create_practice(course, course.chapter("1"), tmp_path / name)

    assert open_practice(course, made.directory).chapter.slug == "01-greeting"


def test_a_symlink_to_a_directory_works(course: Course, tmp_path: Path) -> None:
    """To an empty one, to a folder above, and to a practice."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    create_practice(course, course.chapter("1"), tmp_path / "link" / "mydir")

    (tmp_path / "other").symlink_to("real/mydir")
    assert open_practice(course, tmp_path / "other").chapter.slug == "01-greeting"


def refused(course: Course, directory: Path) -> str:
    with pytest.raises(GraderError) as caught:
        create_practice(course, course.chapter("1"), directory)
    return str(caught.value)


def test_what_exists_is_refused(course: Course, tmp_path: Path) -> None:
    """A file, a stranger's directory, a practice, a dangling symlink: all stay as they are."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    create_practice(course, course.chapter("1"), tmp_path / "mydir")
    before = snapshot(tmp_path)

    assert "exists and is not a directory" in refused(course, tmp_path / "file")
    assert "exists and is not empty" in refused(course, tmp_path / "full")
    assert "exists and is not a directory" in refused(course, tmp_path / "dangling")
    assert "exists already" in refused(course, tmp_path / "mydir")
    assert "cannot be" in refused(course, tmp_path / "file" / "below")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("folder", ["chapters", "solutions"])
def test_the_course_itself_is_refused(course: Course, folder: str) -> None:
    """A practice inside of the course would become a part of it."""
    before = snapshot(course.root)

    assert f"inside the course's own `{folder}`" in refused(course, course.root / folder / "mydir")
    assert f"inside the course's own `{folder}`" in refused(course, course.root / folder)
    assert snapshot(course.root) == before


def test_the_course_through_a_symlink_is_refused(course: Course, tmp_path: Path) -> None:
    """Another name of the folder changes nothing."""
    (tmp_path / "link").symlink_to(course.root / "chapters")

    assert "inside the course's own" in refused(course, tmp_path / "link" / "mydir")


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="root and Windows write everywhere"
)
def test_an_unwritable_place_is_refused(course: Course, tmp_path: Path) -> None:
    """One message with the system's reason."""
    (tmp_path / "locked").mkdir(mode=0o555)

    assert "cannot be made: Permission denied" in refused(course, tmp_path / "locked" / "mydir")


def test_a_place_that_the_system_refuses(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for root, who is refused nothing here: the system's reason, and nothing is left."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("grader.practice.tempfile.mkdtemp", refuse)
    before = sorted(tmp_path.rglob("*"))

    assert refused(course, tmp_path / "a" / "mydir") == (
        f"`{tmp_path / 'a' / 'mydir'}` cannot be made: Permission denied"
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failure_on_the_way_leaves_nothing(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, say: no half of a directory, no temporary folder, no folder above."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grader.checkpoint.shutil.copyfile", full)
    empty = tmp_path / "empty"
    empty.mkdir()
    before = sorted(tmp_path.rglob("*"))

    assert "cannot be made: No space left on device" in refused(course, tmp_path / "a" / "mydir")
    assert "cannot be made: No space left on device" in refused(course, empty)
    assert sorted(tmp_path.rglob("*")) == before


def test_ctrl_c_on_the_way_leaves_nothing(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KeyboardInterrupt passes through, and cleans up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grader.practice.os.rename", interrupt)
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(KeyboardInterrupt):
        create_practice(course, course.chapter("1"), tmp_path / "mydir")

    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_without_a_marker_is_no_practice(course: Course, tmp_path: Path) -> None:
    """The error says how to make one."""
    (tmp_path / "file").write_text("")
    for name, says in (
        ("course", "is no practice directory"),
        ("nowhere", "is no directory"),
        ("file", "is no directory"),
    ):
        with pytest.raises(GraderError, match=says) as caught:
            open_practice(course, tmp_path / name)
        assert "grader practice" in caught.value.hint


def test_a_lost_marker_is_recognised(course: Course, second: Practice) -> None:
    """A copy without dotfiles is told from a directory that never was a practice."""
    (second.directory / MARKER).unlink()

    with pytest.raises(GraderError, match="is no practice directory") as caught:
        open_practice(course, second.directory)
    assert "copy your `mini_agent` into it" in caught.value.hint


@pytest.mark.parametrize(
    "marker",
    [
        b"chapter = ",
        b"\xff\xfe",
        b"",
        b'chapter = "02-counting"',
        b'chapter = "02-counting"\ncourse_version = 1',
        b'chapter = "02-counting"\ncourse_version = "1"\norigin = "moon"',
        b'chapter = "02-counting"\ncourse_version = "1"\nfrom = 3',
        b'chapter = "02-counting"\ncourse_version = "1"\n[from]\n"a.py" = "!"',
        b'chapter = "02-counting"\ncourse_version = "1"\n[from]\n"a.py" = "AAAA"',
        b'chapter = "02-counting"\ncourse_version = "1"\n[from]\n"../a.py" = "eJwDAAAAAAE="',
    ],
)
def test_a_broken_marker_is_one_error(course: Course, second: Practice, marker: bytes) -> None:
    """It names the marker."""
    (second.directory / MARKER).write_bytes(marker)

    with pytest.raises(GraderError, match=r"\.grader\.toml` cannot be read"):
        open_practice(course, second.directory)


def test_a_practice_of_an_unknown_chapter(course: Course, second: Practice) -> None:
    """It was made from another course."""
    toy_course.edit(second.directory / MARKER, "02-counting", "77-elsewhere")

    with pytest.raises(GraderError, match="a practice of `77-elsewhere`"):
        open_practice(course, second.directory)


# --from


@pytest.fixture
def finished(course: Course, tmp_path: Path) -> Practice:
    """A learner's own practice of chapter 01, with a helper file, a backup, a note and a cache."""
    first = create_practice(course, course.chapter("1"), tmp_path / "first")
    toy_course.write_files(
        first.directory,
        {
            GREET: '"""My own."""\n',
            "mini_agent/helper.py": "X = 1\n",
            "mini_agent/greet.py.bak": "old",
            "mini_agent/greet.py.bak.12": "old",
            "mini_agent/.swp": "swap",
            "mini_agent/__pycache__/greet.pyc": "",
            "venv/lib/site.py": "",
            "notes.txt": "mine",
        },
    )
    return first


def test_from_takes_the_learners_package(
    course: Course, finished: Practice, tmp_path: Path
) -> None:
    """Their files and helpers come along; tests, backups, notes and caches stay behind."""
    made = create_practice(course, course.chapter("2"), tmp_path / "next", previous=finished)

    assert sorted(snapshot(made.directory)) == [
        ".grader.toml",
        "README.md",
        "mini_agent/__init__.py",
        "mini_agent/count.py",
        "mini_agent/greet.py",
        "mini_agent/helper.py",
        "pyproject.toml",
        "tests/stretch_02_counting.py",
        "tests/test_02_counting.py",
    ]
    assert (made.directory / GREET).read_text(encoding="utf-8") == '"""My own."""\n'
    assert (made.directory / "mini_agent/count.py").read_bytes() == (
        toy_course.COUNTING_STARTER.encode()
    )


def test_from_fills_a_gap_with_the_reference(
    course: Course, finished: Practice, tmp_path: Path
) -> None:
    """A file that the learner does not have is named, and the reference's is used."""
    (finished.directory / GREET).unlink()

    assert missing_from(course, finished) == [GREET]
    made = create_practice(course, course.chapter("2"), tmp_path / "next", previous=finished)
    assert (made.directory / GREET).read_text(encoding="utf-8") == toy_course.GREETING_SOLUTION


def test_reset_knows_what_came_with_from(
    course: Course, finished: Practice, tmp_path: Path
) -> None:
    """Even when the earlier practice is gone, and whatever bytes it held."""
    odd = b"# \xff\r\n\x00"
    (finished.directory / GREET).write_bytes(odd)
    made = create_practice(course, course.chapter("2"), tmp_path / "next", previous=finished)
    (finished.directory / GREET).unlink()
    (made.directory / GREET).write_text("changed")

    again = open_practice(course, made.directory)
    done = reset_file(course, again, GREET)

    assert done == Reset(GREET, "replaced", f"{GREET}.bak")
    assert (made.directory / GREET).read_bytes() == odd
    assert differences(course, again) == []


def test_from_skips_what_is_no_file(course: Course, finished: Practice, tmp_path: Path) -> None:
    """A dangling symlink and a pipe hold nothing to copy; a pipe would wait for ever."""
    package = finished.directory / "mini_agent"
    (package / "dangling.py").symlink_to("nowhere.py")
    if hasattr(os, "mkfifo"):
        os.mkfifo(package / "pipe.py")

    made = create_practice(course, course.chapter("2"), tmp_path / "next", previous=finished)

    assert sorted(os.listdir(made.directory / "mini_agent")) == [
        "__init__.py",
        "count.py",
        "greet.py",
        "helper.py",
    ]


def test_from_refuses_a_name_that_cannot_be_kept(
    course: Course, finished: Practice, tmp_path: Path
) -> None:
    """One error, and nothing is made."""
    name = b"\xff.py" if sys.platform == "linux" else b"a\nb.py"
    path = os.path.join(os.fsencode(finished.directory / "mini_agent"), name)
    try:
        with open(path, "wb"):
            pass
    except OSError:
        return  # a file system that has no such names

    with pytest.raises(GraderError, match="has a name that cannot be kept"):
        create_practice(course, course.chapter("2"), tmp_path / "next", previous=finished)
    assert not (tmp_path / "next").exists()


# reset


def test_reset_keeps_every_version(course: Course, second: Practice) -> None:
    """Backups are numbered, and none is written over."""
    file = second.directory / GREET
    (second.directory / f"{GREET}.bak.1").write_text("somebody else's")
    kept = []
    for number in range(3):
        file.write_text(f"version {number}")
        kept.append(reset_file(course, second, GREET).backup)

    assert kept == [f"{GREET}.bak", f"{GREET}.bak.2", f"{GREET}.bak.3"]
    assert file.read_text(encoding="utf-8") == toy_course.GREETING_SOLUTION
    names = [f"{GREET}.bak", f"{GREET}.bak.1", f"{GREET}.bak.2", f"{GREET}.bak.3"]
    assert [(second.directory / name).read_text() for name in names] == [
        "version 0",
        "somebody else's",
        "version 1",
        "version 2",
    ]


def test_reset_of_an_unchanged_file_does_nothing(course: Course, second: Practice) -> None:
    """No backup, no write."""
    before = snapshot(second.directory)

    assert reset_file(course, second, GREET) == Reset(GREET, "same")
    assert snapshot(second.directory) == before


def test_reset_brings_a_missing_file_back(course: Course, second: Practice) -> None:
    """With its folder."""
    file = second.directory / "tests/test_02_counting.py"
    for path in file.parent.iterdir():
        path.unlink()
    file.parent.rmdir()

    assert reset_file(course, second, "tests/test_02_counting.py").outcome == "restored"
    assert file.read_text(encoding="utf-8") == toy_course.COUNTING_TESTS


@pytest.mark.parametrize("file", ["README.md", "pyproject.toml", "tests/test_02_counting.py"])
def test_reset_knows_every_file(course: Course, second: Practice, file: str) -> None:
    """Not only the code."""
    before = (second.directory / file).read_bytes()
    (second.directory / file).write_text("x")

    reset_file(course, second, file)

    assert (second.directory / file).read_bytes() == before


def test_reset_takes_a_path_from_here(
    course: Course, second: Practice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mydir/mini_agent/greet.py`, and an absolute path, name the same file."""
    monkeypatch.chdir(second.directory.parent)
    here = Practice(Path("mydir"), second.chapter, second.version)

    for name in (f"mydir/{GREET}", f"./{GREET}", str(second.directory / GREET)):
        assert reset_file(course, here, name).file == GREET


@pytest.mark.parametrize("file", ["mini_agent/nope.py", "../x", "/etc/passwd", "", "mini_agent"])
def test_reset_of_a_strange_file_is_refused(course: Course, second: Practice, file: str) -> None:
    """The error lists the files there are."""
    before = snapshot(second.directory)

    with pytest.raises(GraderError, match="is no file of chapter 02-counting") as caught:
        reset_file(course, second, file)

    assert "mini_agent/greet.py" in caught.value.hint
    assert snapshot(second.directory) == before


def test_reset_replaces_a_directory_or_a_symlink(course: Course, second: Practice) -> None:
    """What stands there is moved aside, whatever it is; a symlink's target is not touched."""
    file = second.directory / GREET
    file.unlink()
    file.mkdir()
    (file / "x").write_text("mine")
    reset_file(course, second, GREET)
    outside = second.directory.parent / "outside.py"
    outside.write_text("mine")
    file.unlink()
    file.symlink_to(outside)
    reset_file(course, second, GREET)

    assert (second.directory / f"{GREET}.bak" / "x").read_text() == "mine"
    assert (second.directory / f"{GREET}.bak.1").is_symlink()
    assert outside.read_text() == "mine"
    assert not file.is_symlink()
    assert file.read_text(encoding="utf-8") == toy_course.GREETING_SOLUTION


def test_reset_does_not_write_through_a_symlinked_folder(course: Course, second: Practice) -> None:
    """The practice's folder may lead elsewhere, to another practice perhaps."""
    outside = second.directory.parent / "outside"
    (second.directory / "mini_agent").rename(outside)
    (second.directory / "mini_agent").symlink_to(outside)
    (outside / "greet.py").write_text("mine")

    with pytest.raises(GraderError, match="through a symlink"):
        reset_file(course, second, GREET)

    assert sorted(os.listdir(outside)) == ["__init__.py", "count.py", "greet.py"]


def test_differences_name_changed_and_missing_files(course: Course, second: Practice) -> None:
    """Files that the learner added are their own."""
    (second.directory / GREET).write_text("x")
    (second.directory / "README.md").unlink()
    (second.directory / "mini_agent/new.py").write_text("x")

    assert differences(course, second) == [
        Difference(GREET, "changed"),
        Difference("README.md", "missing"),
    ]


def test_untouched_is_about_what_the_learner_writes(course: Course, second: Practice) -> None:
    """Another README is no start on the chapter; a change in a teaching file is."""
    (second.directory / "README.md").write_text("x")
    assert is_untouched(course, second)

    (second.directory / GREET).write_text("x")
    assert not is_untouched(course, second)


def test_plain_pytest_works_in_it(course: Course, tmp_path: Path) -> None:
    """`pytest` runs the focused tests, and a stretch file by its path."""
    done = export_target(course, course.chapter("2"), tmp_path / "done")

    for arguments, passed in (([], "3 passed"), (["tests/stretch_02_counting.py"], "4 passed")):
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *arguments],
            cwd=done.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert passed in ran.stdout
        assert ran.returncode == 0
