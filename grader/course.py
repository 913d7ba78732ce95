"""Find and read the course: what each chapter claims, from its chapter.toml.

The manifest is the only place that states these facts. Everything here is read-only;
checkpoint.py composes files, check.py proves the claims.
"""

import ast
import functools
from pathlib import Path
from typing import Literal

import msgspec

from grader.errors import GraderError


class Test(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One focused test: the function's name, and the sentence that reports show for it."""

    __test__ = False  # pytest: this is no test class

    name: str
    title: str


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One practice step. `section` is the README heading that treats it; hints go from vague to plain."""

    id: str
    title: str
    section: str
    expected: int
    tests: tuple[Test, ...]
    hints: tuple[str, ...]
    files: tuple[str, ...]


class FirstRed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the untouched starter shows: the outcome of every focused test, and what the report says.

    For "not run", `message` is part of the one cause; for "failed", of the first test's message.
    """

    outcome: Literal["not run", "failed"]
    message: str


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replace `find`, which stands in `file` exactly once, with `replace`."""

    file: str
    find: str
    replace: str


class FirstStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first thing to do. After `edits` on the starter every test is collected and fails on its own."""

    step: str
    text: str
    edits: tuple[Edit, ...] = ()


class Catch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A focused test that fails under a fault, and a part of what it then says."""

    test: str
    says: str


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A planted mistake: an edit of the target, and exactly the focused tests that catch it.

    `misconception` is told to a learner whose failures are the same as this fault's.
    """

    name: str
    title: str
    misconception: str
    section: str
    file: str
    find: str
    replace: str
    catches: tuple[Catch, ...]


class Mutants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mutation score this chapter must keep, and mutants left out, each with its reason."""

    minimum: float = 0.9
    excluded: dict[str, str] = {}


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chapter.toml as written."""

    number: int
    title: str
    summary: str
    mode: Literal["build", "rebuild", "extend"]
    minutes: int
    teaching_files: tuple[str, ...]
    first_red: FirstRed
    first_step: FirstStep
    steps: tuple[Step, ...]
    faults: tuple[Fault, ...]
    given_files: tuple[str, ...] = ()
    learner_adds: tuple[str, ...] = ()
    mutants: Mutants = Mutants()


class Chapter:
    """One chapter: its manifest, and where its files are."""

    def __init__(self, directory: Path, solution: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.solution = solution
        self.manifest = manifest

    @property
    def slug(self) -> str:
        """The folder's name, such as "05-provider-adapter"."""
        return self.directory.name

    @property
    def number(self) -> str:
        """Two digits, such as "05"."""
        return f"{self.manifest.number:02d}"

    @property
    def readme(self) -> Path:
        return self.directory / "README.md"

    @property
    def starter(self) -> Path:
        return self.directory / "starter"

    @property
    def tests(self) -> Path:
        return self.directory / "tests"

    @property
    def focused_file(self) -> Path:
        """`tests/test_NN_slug.py`: the one file of focused tests."""
        return self.tests / f"test_{self.slug.replace('-', '_')}.py"

    @property
    def stretch_files(self) -> tuple[Path, ...]:
        """`tests/stretch_NN_*.py`, by name."""
        return tuple(sorted(self.tests.glob(f"stretch_{self.number}_*.py")))

    @property
    def focused(self) -> tuple[tuple[Step, Test], ...]:
        """Every focused test with its step, in the course's order."""
        return tuple((step, test) for step in self.manifest.steps for test in step.tests)

    def step(self, id: str) -> Step:
        """The step with this id. Raises GraderError that names the steps there are."""
        for step in self.manifest.steps:
            if step.id == id:
                return step
        known = ", ".join(step.id for step in self.manifest.steps)
        raise GraderError(f"chapter {self.number} has no step `{id}`; its steps are {known}")

    def __repr__(self) -> str:
        return f"Chapter({self.slug!r})"


class Course:
    """All chapters under one root, in order. `packaged` is True for the course inside the package."""

    def __init__(self, root: Path, chapters: tuple[Chapter, ...], *, packaged: bool) -> None:
        self.root = root
        self.chapters = chapters
        self.packaged = packaged

    @property
    def notebooks(self) -> Path:
        return self.root / "notebooks"

    def chapter(self, name: str) -> Chapter:
        """By number or slug: "5", "05", "provider-adapter" or "05-provider-adapter".

        Raises GraderError with the chapters there are.
        """
        wanted = name.strip().lower()
        for chapter in self.chapters:
            slug = chapter.slug
            if wanted in (slug, slug.partition("-")[2], chapter.number, str(int(chapter.number))):
                return chapter
        known = ", ".join(chapter.slug for chapter in self.chapters)
        raise GraderError(f"there is no chapter `{name}`; the chapters are {known}")

    def up_to(self, chapter: Chapter) -> tuple[Chapter, ...]:
        """The chapters whose overlays make `chapter`'s target, in order."""
        return self.chapters[: self.chapters.index(chapter) + 1]


@functools.cache
def test_functions(file: Path) -> tuple[str, ...]:
    """The names of the test functions in `file`, in order, read without running it."""
    tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    return tuple(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )
