"""Finding a course, and the one clear error that a broken one gives."""

import shutil
from pathlib import Path

import pytest
import toy_course

from grader import course as courses
from grader.course import headings, load_course, packaged_root
from grader.errors import CourseError, GraderError

TOML = "chapters/02-counting/chapter.toml"
WORDS_ARE_COUNTED = '    { name = "test_words_are_counted", title = "words: are counted" },\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return toy_course.write_course(tmp_path / "course")


def error_of(root: Path) -> str:
    """What a learner of chapter 02 is told."""
    course = load_course(root)
    with pytest.raises(CourseError) as caught:
        course.chapter("02").manifest  # noqa: B018
    return str(caught.value)


def test_a_chapter_is_found_by_number_and_name(root: Path) -> None:
    """5, 05, the name and the whole slug are the same chapter."""
    course = load_course(root)

    found = [course.chapter(name).slug for name in ("2", "02", "counting", "02-counting", " 02 ")]

    assert found == ["02-counting"] * 5


def test_an_unknown_chapter_is_told_which_there_are(root: Path) -> None:
    """The error lists the chapters."""
    with pytest.raises(GraderError) as caught:
        load_course(root).chapter("13")

    assert str(caught.value) == "there is no chapter `13`"
    assert caught.value.hint == (
        "`05`, `5` or a name; the chapters are\n  01-greeting\n  02-counting\n  03-farewell"
    )


def test_chapters_come_in_order_with_their_overlays(root: Path) -> None:
    """A chapter knows the solutions that make its target, its own last."""
    course = load_course(root)
    second = course.chapter("2")

    assert [chapter.slug for chapter in course.chapters] == list(toy_course.CHAPTERS)
    assert [folder.name for folder in second.solutions] == ["01-greeting", "02-counting"]
    assert course.parent(second) is course.chapters[0]
    assert course.next(second) is course.chapters[2]
    assert course.parent(course.chapters[0]) is None
    assert course.next(course.chapters[2]) is None


def test_a_good_manifest_is_read_whole(root: Path) -> None:
    """Steps, tests and stretch files of the made-up course."""
    chapter = load_course(root).chapter("2")

    assert [(step.id, test.name) for step, test in chapter.focused] == [
        ("2.1", "test_count_holds_a_number"),
        ("2.2", "test_words_are_counted"),
        ("2.2", "test_words_none"),
    ]
    assert [file.name for file in chapter.stretch_files] == ["stretch_02_counting.py"]
    assert chapter.step("2.2").title == "Count words"


def test_a_step_that_is_not_there_is_told_which_are(root: Path) -> None:
    """The error lists the steps."""
    with pytest.raises(
        GraderError, match=r"chapter 02 has no step `2\.9`; its steps are 2\.1, 2\.2"
    ):
        load_course(root).chapter("2").step("2.9")


def test_the_checkout_around_the_working_directory_is_used(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --course, a checkout around here comes before the packaged course."""
    inside = root / "some" / "where"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)

    course = load_course()

    assert course.root == root.resolve()
    assert not course.packaged
    assert course.command == "grader"


def test_elsewhere_the_packaged_course_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of any checkout the course that came with the package is used."""
    monkeypatch.chdir(tmp_path)

    course = load_course()

    assert course.packaged
    assert course.root == packaged_root()


def test_a_course_that_was_asked_for_stays_in_the_commands(root: Path) -> None:
    """A command that a report gives has to name the course again."""
    assert load_course(root).command == f"grader --course {root}"


def test_a_folder_that_is_no_course(tmp_path: Path) -> None:
    """--course with any other folder is an error that says what a course is."""
    with pytest.raises(CourseError, match="has no folder `chapters`"):
        load_course(tmp_path)
    (tmp_path / "chapters").mkdir()
    with pytest.raises(CourseError, match="is no course"):
        load_course(tmp_path)


def test_two_chapters_with_one_number(root: Path) -> None:
    """Their order would be chance."""
    shutil.copytree(root / "chapters/02-counting", root / "chapters/02-other")

    with pytest.raises(CourseError, match="the number 02: 02-counting and 02-other"):
        load_course(root)


def test_a_folder_with_a_strange_name(root: Path) -> None:
    """A chapter's folder is two digits and words."""
    shutil.copytree(root / "chapters/02-counting", root / "chapters/4-Four")

    with pytest.raises(CourseError, match="is not named like a chapter"):
        load_course(root)


def test_a_broken_chapter_does_not_hurt_the_others(root: Path) -> None:
    """A manifest is read when its chapter is used."""
    root.joinpath(TOML).write_text("number = ", encoding="utf-8")

    assert load_course(root).chapter("01").manifest.title == "Greeting"


@pytest.mark.parametrize(
    ("find", "replace", "says"),
    [
        ('mode = "extend"', 'mode = "extend"\ncolour = "red"', "unknown key `colour`"),
        ('mode = "extend"', 'mode = "play"', "mode: Invalid enum value 'play'"),
        ("minutes = 10", 'minutes = "10"', "minutes: Expected `int`, got `str`"),
        ("minutes = 10\n", "", "missing key `minutes`"),
        ('title = "A count"', 'titel = "A count"', "steps[0]: "),
        ("number = 2\n", "number = 3\n", "number: 3, but the folder is 02-counting"),
        ('"mini_agent/count.py"]\nlearner', '"mini_agent/gone.py"]\nlearner', "gone.py"),
        ('"mini_agent/count.py"]\nlearner', '"../x.py"]\nlearner', "missing file"),
        ("expected = 1", "expected = 2", "step 2.1 says 2 and lists 1 tests"),
        ('id = "2.2"', 'id = "2.1"', "steps: two have the id `2.1`"),
        ('id = "2.2"', 'id = "3.2"', "steps[1].id: `3.2` is not like `2.1`"),
        ('section = "What a count is"\nexp', 'section = "Nowhere"\nexp', "no heading `Nowhere`"),
        (
            'name = "test_words_none", title',
            'name = "test_words_are_counted", title',
            "test `test_words_are_counted` is listed twice",
        ),
        (
            'name = "test_words_none", title',
            'name = "test_word_none", title',
            "test `test_word_none` is not in tests/test_02_counting.py",
        ),
        (
            WORDS_ARE_COUNTED,
            "",
            "steps[1].expected: step 2.2 says 2 and lists 1 tests",
        ),
        ('step = "2.1"', 'step = "2.7"', "first_step.step: there is no step `2.7`"),
        ('name = "one-more"', 'name = "letters"', "faults: two have the name `letters`"),
        (
            'catches = [{ test = "test_words_are_counted", says = "two words" }]',
            'catches = [{ test = "test_wrong", says = "two words" }]',
            "faults[0].catches: there is no test `test_wrong`",
        ),
        (
            'catches = [{ test = "test_words_are_counted", says = "two words" }]',
            "catches = []",
            "fault `letters` is caught by no test",
        ),
        (
            'file = "mini_agent/greet.py"\nfind = "self.n = n"',
            'file = "mini_agent/nope.py"\nfind = "self.n = n"',
            "faults[2].file: missing file mini_agent/nope.py",
        ),
        ("greet.py:Count", "greet.py-Count", "learner_adds: `mini_agent/greet.py-Count`"),
        ('hints = ["str.split", "Count(len(text.split()))"]', "hints = []", "step 2.2 has none"),
        ("number = 2", "number 2", "is not valid TOML"),
    ],
)
def test_a_broken_manifest_names_file_and_key(
    root: Path, find: str, replace: str, says: str
) -> None:
    """One error: the file, and what is wrong in it."""
    toy_course.edit(root / TOML, find, replace)

    message = error_of(root)

    assert message.startswith(f"{TOML}")
    assert says in message


@pytest.mark.parametrize(
    "file", ["README.md", "tests/test_02_counting.py"], ids=["readme", "focused"]
)
def test_a_missing_file_is_named(root: Path, file: str) -> None:
    """A chapter is its README, its starter and its tests."""
    root.joinpath("chapters/02-counting", file).unlink()

    assert error_of(root) == f"{TOML}: missing file chapters/02-counting/{file}"


def test_a_missing_solution_file_is_named(root: Path) -> None:
    """teaching_files stand in the solution."""
    root.joinpath("solutions/02-counting/mini_agent/count.py").unlink()

    missing = "solutions/02-counting/mini_agent/count.py"
    assert error_of(root) == f"{TOML}: teaching_files: missing file {missing}"


def test_a_test_function_without_a_step(root: Path) -> None:
    """A test that no step lists would never run."""
    file = root / "chapters/02-counting/tests/test_02_counting.py"
    file.write_text(file.read_text(encoding="utf-8") + "\n\ndef test_new() -> None: ...\n")

    assert "`test_new` of tests/test_02_counting.py belongs to no step" in error_of(root)


def test_a_test_function_that_hides_another(root: Path) -> None:
    """Python keeps the second of two functions with one name, and says nothing."""
    file = root / "chapters/02-counting/tests/test_02_counting.py"
    file.write_text(file.read_text(encoding="utf-8") + "\n\ndef test_words_none() -> None: ...\n")

    assert "defines `test_words_none` twice" in error_of(root)


def test_a_manifest_that_is_not_utf_8(root: Path) -> None:
    """The error names the file."""
    root.joinpath(TOML).write_bytes(b'title = "\xff"')

    assert error_of(root).startswith(f"{TOML} is not valid TOML")


def test_headings_are_those_outside_of_fences(tmp_path: Path) -> None:
    """A comment in a shell block is no heading."""
    file = tmp_path / "README.md"
    file.write_text(
        "# One\n\n```sh\n# not one\n```\n\n## Two `x` ##\r\n"
        "~~~~\n## nor this\n~~~\n~~~~\n### Three\n"
    )

    assert headings(file) == {"One", "Two `x`", "Three"}


def test_test_functions_are_read_without_running_them(tmp_path: Path) -> None:
    """Async ones too; methods and helpers are none."""
    file = tmp_path / "test_x.py"
    file.write_text(
        "raise SystemExit\ndef test_a(): ...\nasync def test_b(): ...\n"
        "def helper(): ...\nclass C:\n    def test_c(self): ...\n"
    )

    assert courses.test_functions(file) == ("test_a", "test_b")
