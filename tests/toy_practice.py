"""A made-up course file with three tests, and practice directories for it."""

from pathlib import Path

from grader.results import Run
from grader.runner import Expected

COURSE_TESTS = '''
from mini_agent.thing import add, greet  # before the helpers: what it does to them must show
from grader.testing import assert_same

def test_add_two() -> None:
    """Numbers are added."""
    assert_same(add(2, 3), 5, because="2 and 3 are 5")

def test_greet_name() -> None:
    """A name is greeted."""
    assert greet("Ada") == "hello Ada"

def test_add_zero() -> None:
    """Nothing added changes nothing."""
    assert_same(add(7, 0), 7, because="0 adds nothing")
'''
NAMES = ("test_add_two", "test_greet_name", "test_add_zero")
RIGHT = "def add(a, b): return a + b\ndef greet(name): return f'hello {name}'\n"
WRONG = "def add(a, b): return a * b + 1\ndef greet(name): return name\n"


def course(folder: Path, source: str = COURSE_TESTS) -> tuple[Expected, ...]:
    """A made-up course file with three tests, written outside the practice directory."""
    file = folder / "course" / "test_99_toy.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    return tuple(Expected(file, name, name, "1.1") for name in NAMES)


def practice(folder: Path, thing: str = RIGHT, **files: str) -> Path:
    """A practice directory with one module."""
    directory = folder / "mydir"
    package = directory / "mini_agent"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "thing.py").write_text(thing, encoding="utf-8")
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return directory


def outcomes(run: Run) -> list[str]:
    return [test.outcome for test in run.tests]
