"""The real course as its learners meet it: the first look, and the way from chapter to chapter."""

import shutil
from pathlib import Path

import pytest

from grader.cli import main
from grader.course import Course, load_course

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """The course of this checkout, seen from a learner's own directory."""
    monkeypatch.chdir(tmp_path)
    return load_course(ROOT)


def test_the_first_look_at_chapter_05(
    course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eleven tests, red, one cause said once, and what to do next."""
    code = main(["--course", str(ROOT), "practice", "05", "mydir"])

    page = capsys.readouterr().out
    assert code == 1
    assert page.count("cannot import name 'ToolDefinition' from 'mini_agent.types'") == 1
    assert page.count("\n    ----  ") == 11
    assert "0 of 11 passed" in page
    assert "Red is where every chapter starts: nothing is broken." in page
    assert "grader test mydir --step 5.1`" in page.replace(f" --course {ROOT}", "")


def test_the_way_from_the_first_chapter_to_the_last(
    course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each chapter starts red on the learner's own code, is green when it is written, and leads on.

    The learner here writes exactly the reference solution's files, one chapter after the other.
    """
    before: list[str] = []
    for chapter in course.chapters:
        directory = f"practice{chapter.number}"
        focused = len(chapter.focused)
        grader = ["--course", str(ROOT)]

        red = main([*grader, "practice", chapter.number, directory, *before])
        first = capsys.readouterr()
        shutil.copytree(chapter.solution, tmp_path / directory, dirs_exist_ok=True)
        green = main([*grader, "test", directory])
        last = capsys.readouterr()

        assert (chapter.slug, red, green) == (chapter.slug, 1, 0), first.out + last.out + first.err
        assert f"0 of {focused} passed" in first.out
        assert "warning" not in first.out
        assert f"{focused} of {focused} passed" in last.out
        following = course.next(chapter)
        if following is None:
            assert "That was the last chapter." in last.out
        else:
            assert f"practice {following.number} NEXT --from {directory}`" in last.out
        before = ["--from", directory]
