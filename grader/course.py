"""Find and read the course: what each chapter claims, from its chapter.toml.

The manifest is the only place that states these facts. Everything here is read-only;
checkpoint.py composes files, check.py proves the claims.

A learner waits for this on every save, so a manifest is read and checked when it is first asked
for: one chapter's mistake is told to the one who uses that chapter.
"""

import functools
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

import grader
from grader.errors import CourseError, GraderError


class Test(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One focused test: the function's name, and the sentence that reports show for it."""

    __test__ = False  # pytest: this is no test class

    name: str
    title: str


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One practice step. `section` is the README heading that treats it; hints start vague."""

    id: str
    title: str
    section: str
    expected: int
    tests: tuple[Test, ...]
    hints: tuple[str, ...]
    files: tuple[str, ...]


class FirstRed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the untouched starter shows: every focused test's outcome, and what the report says.

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
    """The first thing to do. After `edits` every test is collected and fails on its own."""

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


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the target that holds what a command prints, byte for byte.

    `command` runs in the target's directory; its first word "python" is the running Python.
    """

    command: tuple[str, ...]
    file: str


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
    recordings: tuple[Recording, ...] = ()


class Chapter:
    """One chapter: its manifest, and where its files are.

    `solutions` are the overlays that make its target, in order; its own is the last.
    """

    def __init__(
        self, directory: Path, solutions: tuple[Path, ...], manifest: Manifest | None = None
    ) -> None:
        self.directory = directory
        self.solutions = solutions
        if manifest is not None:
            self.__dict__["manifest"] = manifest

    @functools.cached_property
    def manifest(self) -> Manifest:
        """chapter.toml, read and checked. Raises CourseError that names file and key."""
        return _read_manifest(self)

    @property
    def slug(self) -> str:
        """The folder's name, such as "05-provider-adapter"."""
        return self.directory.name

    @property
    def number(self) -> str:
        """Two digits, such as "05"."""
        return self.slug[:2]

    @property
    def solution(self) -> Path:
        """The overlay that this chapter adds to its parent."""
        return self.solutions[-1]

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
    """All chapters under one root, in order. `packaged`: this is the course inside the package."""

    def __init__(self, root: Path, chapters: tuple[Chapter, ...], *, packaged: bool) -> None:
        self.root = root
        self.chapters = chapters
        self.packaged = packaged
        self.version = grader.__version__
        self.command = "grader"  # as the user has to write it to get this course again

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
        known = "\n".join(f"  {chapter.slug}" for chapter in self.chapters)
        raise GraderError(
            f"there is no chapter `{name}`", hint=f"`05`, `5` or a name; the chapters are\n{known}"
        )

    def up_to(self, chapter: Chapter) -> tuple[Chapter, ...]:
        """The chapters whose overlays make `chapter`'s target, in order."""
        return self.chapters[: self.chapters.index(chapter) + 1]

    def parent(self, chapter: Chapter) -> Chapter | None:
        """The chapter before this one, or None for the first."""
        at = self.chapters.index(chapter)
        return self.chapters[at - 1] if at else None

    def next(self, chapter: Chapter) -> Chapter | None:
        """The chapter after this one, or None for the last."""
        at = self.chapters.index(chapter) + 1
        return self.chapters[at] if at < len(self.chapters) else None


def load_course(path: Path | None = None) -> Course:
    """The course at `path`; without one, the checkout around the working directory, else the
    course that came with the package. Raises CourseError where there is none.

    No manifest is read yet.
    """
    own = packaged_root()
    if path is not None:
        root = path.resolve()
        if not (root / "chapters").is_dir():
            raise CourseError(
                f"`{path}` is no course: it has no folder `chapters`",
                hint="`--course` takes the root of a checkout, the folder that holds `chapters`",
            )
    else:
        root = _checkout_around(Path.cwd()) or own
    course = Course(root, _chapters_under(root), packaged=root == own)
    if path is not None and not course.packaged:
        course.command = f"grader --course {shlex.quote(str(path))}"
    return course


def packaged_root() -> Path:
    """The root of the course that came with the package, or of the checkout that holds it."""
    package = Path(__file__).resolve().parent
    carried = package / "_course"
    return carried if carried.is_dir() else package.parent


def _checkout_around(directory: Path) -> Path | None:
    for folder in (directory, *directory.parents):
        chapters = folder.glob("chapters/[0-9][0-9]-*/chapter.toml")
        if (folder / "solutions").is_dir() and any(chapters):
            return folder.resolve()
    return None


def _chapters_under(root: Path) -> tuple[Chapter, ...]:
    """Every `chapters/NN-slug` that holds a chapter.toml, in order."""
    files = sorted(root.glob("chapters/*/chapter.toml"))
    if not files:
        raise CourseError(f"`{root}` is no course: no `chapters/NN-slug/chapter.toml` in it")
    chapters: list[Chapter] = []
    solutions: tuple[Path, ...] = ()
    for file in files:
        slug = file.parent.name
        if not re.fullmatch(r"[0-9]{2}(-[a-z0-9]+)+", slug):
            raise CourseError(
                f"`{file.parent}` is not named like a chapter",
                hint="two digits, then words in lower case, with hyphens: `05-provider-adapter`",
            )
        if chapters and chapters[-1].number == slug[:2]:
            both = f"{chapters[-1].slug} and {slug}"
            raise CourseError(f"two chapters have the number {slug[:2]}: {both}")
        solutions = (*solutions, root / "solutions" / slug)
        chapters.append(Chapter(file.parent, solutions))
    return tuple(chapters)


def _read_manifest(chapter: Chapter) -> Manifest:
    manifest = _decoded(chapter)
    for _, problem in _problems(chapter, manifest):
        raise CourseError(f"{_shown(chapter)}: {problem}")
    return manifest


def _decoded(chapter: Chapter) -> Manifest:
    file, shown = chapter.directory / "chapter.toml", _shown(chapter)
    try:
        return msgspec.toml.decode(file.read_bytes(), type=Manifest)
    except OSError as error:
        raise CourseError(f"{shown} cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise CourseError(f"{shown}: {_in_plain_words(str(error))}") from None
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: not UTF-8
        raise CourseError(f"{shown} is not valid TOML: {error}") from None


def _shown(chapter: Chapter) -> str:
    return f"chapters/{chapter.slug}/chapter.toml"


def _in_plain_words(message: str) -> str:
    """msgspec's "Object contains unknown field `x` - at `$.a[0]`" as "a[0]: unknown key `x`"."""
    text, _, place = message.partition(" - at `$")
    text = text.replace("Object contains unknown field", "unknown key")
    text = text.replace("Object missing required field", "missing key")
    place = place.rstrip("`").lstrip(".")
    return f"{place}: {text}" if place else text


def manifest_problems(chapter: Chapter) -> dict[str, list[str]]:
    """All that is wrong with a chapter's manifest, by part: form, files, steps, tests, faults.

    `Chapter.manifest` raises the first of these; check shows them all.
    """
    names = ("form", "files", "steps", "tests", "faults")
    parts: dict[str, list[str]] = {name: [] for name in names}
    try:
        manifest = _decoded(chapter)
    except CourseError as error:
        parts["form"] = [str(error)]
        return parts
    for part, problem in _problems(chapter, manifest):
        parts[part].append(problem)
    return parts


def _problems(chapter: Chapter, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """What is wrong with a well-formed manifest, by part. What costs a run is check's."""
    if f"{manifest.number:02d}" != chapter.number:
        yield "form", f"number: {manifest.number}, but the folder is {chapter.slug}"
    for file in (chapter.readme, chapter.starter, chapter.focused_file):
        if not file.exists():
            place = file.relative_to(chapter.directory).as_posix()
            yield "files", f"missing file chapters/{chapter.slug}/{place}"
            return
    for file, read in ((chapter.readme, headings), (chapter.focused_file, test_functions)):
        try:
            read(file)
        except (OSError, UnicodeDecodeError) as error:
            place = f"chapters/{chapter.slug}/{file.relative_to(chapter.directory).as_posix()}"
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            yield "files", f"{place} cannot be read: {reason}"
            return
    yield from (("files", problem) for problem in _problems_with_files(chapter, manifest))
    yield from (("steps", problem) for problem in _problems_with_steps(chapter, manifest))
    yield from (("tests", problem) for problem in _problems_with_tests(chapter, manifest))
    yield from (("faults", problem) for problem in _problems_with_faults(chapter, manifest))


def _problems_with_files(chapter: Chapter, manifest: Manifest) -> Iterator[str]:
    listed = (*manifest.teaching_files, *manifest.given_files)
    for key, files in (
        ("teaching_files", manifest.teaching_files),
        ("given_files", manifest.given_files),
    ):
        for name in files:
            if not plain_path(name) or not (chapter.solution / name).is_file():
                yield f"{key}: missing file solutions/{chapter.slug}/{name}"
    for name in _twice(listed):
        yield f"teaching_files, given_files: `{name}` is listed twice"
    for at, step in enumerate(manifest.steps):
        for name in step.files:
            if name not in listed:
                yield f"steps[{at}].files: `{name}` is not one of teaching_files"
    for name in manifest.learner_adds:
        if name.partition(":")[0] not in manifest.teaching_files or ":" not in name:
            yield f"learner_adds: `{name}` is not `FILE:NAME` with a file of teaching_files"
    for at, edit in enumerate(manifest.first_step.edits):
        folders = (chapter.starter, *reversed(chapter.solutions[:-1]))
        if not any((folder / edit.file).is_file() for folder in folders):
            yield f"first_step.edits[{at}].file: missing file {edit.file}"


def _problems_with_steps(chapter: Chapter, manifest: Manifest) -> Iterator[str]:
    known = headings(chapter.readme)
    if not manifest.steps:
        yield "steps: there is none"
    ids = [step.id for step in manifest.steps]
    for twice in _twice(ids):
        yield f"steps: two have the id `{twice}`"
    for at, step in enumerate(manifest.steps):
        if not re.fullmatch(rf"{manifest.number}\.[1-9][0-9]*", step.id):
            yield f"steps[{at}].id: `{step.id}` is not like `{manifest.number}.1`"
        if step.expected != len(step.tests):
            yield (
                f"steps[{at}].expected: step {step.id} says {step.expected}"
                f" and lists {len(step.tests)} tests"
            )
        if not step.hints:
            yield f"steps[{at}].hints: step {step.id} has none"
        if step.section not in known:
            yield f"steps[{at}].section: README.md has no heading `{step.section}`"
    if manifest.first_step.step not in ids:
        yield f"first_step.step: there is no step `{manifest.first_step.step}`"


def _problems_with_tests(chapter: Chapter, manifest: Manifest) -> Iterator[str]:
    file = f"tests/{chapter.focused_file.name}"
    listed = [test.name for step in manifest.steps for test in step.tests]
    for name in _twice(listed):
        yield f"steps: test `{name}` is listed twice; a test belongs to one step"
    written = test_functions(chapter.focused_file)
    for name in _twice(written):
        yield f"{file} defines `{name}` twice; the second hides the first"
    for name in listed:
        if name not in written:
            yield f"steps: test `{name}` is not in {file}"
    for name in written:
        if name not in listed:
            yield f"steps: `{name}` of {file} belongs to no step"


def _problems_with_faults(chapter: Chapter, manifest: Manifest) -> Iterator[str]:
    known = headings(chapter.readme)
    tests = {test.name for step in manifest.steps for test in step.tests}
    for name in _twice(fault.name for fault in manifest.faults):
        yield f"faults: two have the name `{name}`"
    for at, fault in enumerate(manifest.faults):
        if not any((folder / fault.file).is_file() for folder in chapter.solutions):
            yield f"faults[{at}].file: missing file {fault.file}"
        if fault.section not in known:
            yield f"faults[{at}].section: README.md has no heading `{fault.section}`"
        if not fault.catches:
            yield f"faults[{at}].catches: fault `{fault.name}` is caught by no test"
        for catch in fault.catches:
            if catch.test not in tests:
                yield f"faults[{at}].catches: there is no test `{catch.test}`"


def plain_path(name: str) -> bool:
    """Whether `name` is a relative path that stays below its folder."""
    return not name.startswith("/") and "\\" not in name and ".." not in name.split("/")


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


@functools.cache
def headings(file: Path) -> frozenset[str]:
    """The headings of a Markdown file, without their #'s; a # inside a fence is none."""
    found: set[str] = set()
    fence = ""
    for line in file.read_text(encoding="utf-8").split("\n"):
        mark = re.match(r" {0,3}(```+|~~~+)", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not line.strip(" `~\r"):
            fence = ""
        elif not fence and (heading := re.match(r"#{1,6} +(.*?)[ #\r]*$", line)):
            found.add(heading[1])
    return frozenset(found)


@functools.cache
def test_functions(file: Path) -> tuple[str, ...]:
    """The names of the test functions in `file`, in order, read without running it.

    By its lines and not by `ast`, which would cost a learner several milliseconds a run.
    """
    text = file.read_text(encoding="utf-8")
    return tuple(re.findall(r"^(?:async )?def (test_\w+)", text, flags=re.MULTILINE))
