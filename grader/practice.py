"""Practice directories: make one, recognise it, say what changed in it, set a file back.

A practice directory is parent + starter + tests + README + a small pyproject.toml, and the marker
`.grader.toml`. It is made in one piece or not at all, and no file in it is written again
except by `reset`, which keeps what it replaces.
"""

import base64
import binascii
import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import stat
import tempfile
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from grader.checkpoint import copy_files, files_under, parent_files, target_files
from grader.course import Chapter, Course, packaged_root, plain_path
from grader.errors import GraderError
from grader.files import LIMIT, read_regular

MARKER = ".grader.toml"

Origin = Literal["starter", "target"]

_PYPROJECT = """\
# Plain `pytest` in this directory runs the focused tests, and editors find `mini_agent` from here.
# Stretch tests run with `grader test . --stretch`, or by their path: `pytest tests/stretch_...py`.

[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
"""

_LINK_OUT = re.compile(r"\[([^\]\n]+)\]\(\.\./[^)\n]*\)")
_BACKUP = re.compile(r"\.bak(\.[0-9]+)?$")


@dataclasses.dataclass(frozen=True, slots=True)
class Practice:
    """A directory with a marker. `previous` holds what `--from` took from an earlier practice."""

    directory: Path  # as the user wrote it
    chapter: Chapter
    version: str  # of the course that it was made from
    origin: Origin = "starter"
    previous: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def files(self, course: Course) -> dict[str, Path | bytes]:
        """Every file as it was when the directory was made, by relative path."""
        if self.origin == "target":
            files: dict[str, Path | bytes] = {**target_files(course, self.chapter)}
        else:
            files = {**parent_files(course, self.chapter), **self.previous}
            files |= files_under(self.chapter.starter)
        files |= {f"tests/{name}": path for name, path in files_under(self.chapter.tests).items()}
        files["README.md"] = _readme(self.chapter)
        files["pyproject.toml"] = _PYPROJECT.encode()
        return files

    def warning(self, course: Course) -> str:
        """A sentence if the directory is of another version of the course, else nothing."""
        if self.version == course.version:
            return ""
        return (
            f"`{self.directory}` was made from version {self.version} of the course;"
            f" its tests are now those of {course.version}"
        )


def create_practice(
    course: Course, chapter: Chapter, directory: Path, *, previous: Practice | None = None
) -> Practice:
    """Make a practice directory of `chapter`. With `previous`, the parent is the learner's own."""
    taken = files_from(course, previous) if previous else {}
    practice = Practice(directory, chapter, course.version, "starter", taken)
    _write(course, practice)
    return practice


def export_target(course: Course, chapter: Chapter, directory: Path) -> Practice:
    """Write the finished checkpoint of `chapter`, with its tests, into a new directory."""
    practice = Practice(directory, chapter, course.version, "target")
    _write(course, practice)
    return practice


def is_practice(directory: Path) -> bool:
    return os.path.lexists(directory / MARKER)


def open_practice(course: Course, directory: Path) -> Practice:
    """The practice in `directory`. Raises GraderError if there is none that this course knows."""
    try:
        status = (directory / MARKER).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LIMIT:
            raise _bad_marker(directory, "it is no file that `grader` wrote")
        text = (directory / MARKER).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        what = "is no practice directory" if directory.is_dir() else "is no directory"
        raise GraderError(f"`{directory}` {what}", hint=_where_it_may_be(directory)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_marker(directory, _reason(error)) from None
    try:
        marker = tomllib.loads(text)
        slug, version = marker["chapter"], marker["course_version"]
        origin = marker.get("origin", "starter")
        previous = {name: _unpack(packed) for name, packed in marker.get("from", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise _bad_marker(directory, _reason(error)) from None
    if origin not in ("starter", "target") or not isinstance(version, str):
        raise _bad_marker(directory, "`origin` or `course_version` is wrong")
    if not all(map(plain_path, previous)):
        raise _bad_marker(directory, "a path in `from` leads out of the directory")
    for chapter in course.chapters:
        if chapter.slug == slug:
            return Practice(directory, chapter, version, origin, previous)
    raise GraderError(
        f"`{directory}` is a practice of `{slug}`, a chapter that the course at `{course.root}`"
        " does not have",
        hint="`--course PATH` names another course",
    )


def _where_it_may_be(directory: Path) -> str:
    """The way out for one who named, or stands in, a directory that is no practice."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: another drive
        for above in Path(os.path.abspath(directory)).parents:
            if is_practice(above):
                return f"it is inside one: `grader test {shlex.quote(os.path.relpath(above))}`"
        if (directory / "mini_agent").is_dir() and (directory / "pyproject.toml").is_file():
            return (
                f"it looks like one that has lost its `{MARKER}`, perhaps when it was copied;"
                " make a new practice and copy your `mini_agent` into it"
            )
        inside = sorted(path for path in directory.iterdir() if is_practice(path))
        if inside:
            commands = "\n".join(f"  `grader test {shlex.quote(str(path))}`" for path in inside[:8])
            return f"it holds practice directories; grade one of them\n{commands}"
    return "make one with `grader practice 05 mydir`; `grader list` shows the chapters"


def files_from(course: Course, previous: Practice) -> dict[str, bytes]:
    """The package files of a finished practice: what the next chapter's parent is made of.

    Tests, backups and whatever else lies in the directory stay behind.
    """
    known = target_files(course, previous.chapter)
    folders = {name.split("/")[0] for name in known if "/" in name}
    taken: dict[str, bytes] = {}
    for folder in sorted(folders):
        for name, path in files_under(previous.directory / folder).items():
            if _BACKUP.search(name) or Path(name).name.startswith(".") or not path.is_file():
                continue
            if not name.isprintable():
                raise GraderError(f"`{path}` has a name that cannot be kept")
            taken[f"{folder}/{name}"] = _read(path)
    for name in known:
        path = previous.directory / name
        if name not in taken and path.is_file():
            taken[name] = _read(path)
    return taken


def missing_from(course: Course, previous: Practice) -> list[str]:
    """The parent's files that `previous` does not have; the reference's stand in for them."""
    known = target_files(course, previous.chapter)
    return [name for name in known if not (previous.directory / name).is_file()]


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A file that is not as it was when the practice directory was made."""

    file: str
    kind: Literal["changed", "missing"]


def _readme(chapter: Chapter) -> Path | bytes:
    """The chapter's text. Its links to other chapters lead nowhere from here: their words stay."""
    text = chapter.readme.read_bytes()
    inside = _LINK_OUT.sub(r"\1", text.decode("utf-8", "surrogateescape"))
    changed = inside.encode("utf-8", "surrogateescape")
    return chapter.readme if changed == text else changed


def lost_module(course: Course, practice: Practice, cause: str) -> str | None:
    """The file that the import error `cause` misses, if `reset` can bring it back."""
    found = re.search(r"No module named '(mini_agent(?:\.\w+)*)'", cause)
    name = found[1].replace(".", "/") if found else ""
    if not name or os.path.lexists(practice.directory / name):
        return None
    file = f"{name}.py"
    known = file in practice.files(course)
    return file if known and not os.path.lexists(practice.directory / file) else None


def differences(course: Course, practice: Practice) -> list[Difference]:
    """What differs from the origin. Files that the learner added are not listed."""
    found: list[Difference] = []
    for name, source in practice.files(course).items():
        path = practice.directory / name
        if not os.path.lexists(path):
            found.append(Difference(name, "missing"))
        elif not _same(path, _content(source)):
            found.append(Difference(name, "changed"))
    return found


def is_untouched(course: Course, practice: Practice) -> bool:
    """Whether every file that the learner is to write is still as the starter has it."""
    origin = practice.files(course)
    for name in practice.chapter.manifest.teaching_files:
        path = practice.directory / name
        if name in origin:
            if not _same(path, _content(origin[name])):
                return False
        elif os.path.lexists(path):
            return False
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class Reset:
    """What became of one file, and the backup that holds what stood there."""

    file: str
    outcome: Literal["replaced", "restored", "same"]
    backup: str | None = None


def reset_file(course: Course, practice: Practice, file: str) -> Reset:
    """Set one file back to what it was when the directory was made, and keep what stood there."""
    origin = practice.files(course)
    name = _name_in(practice, file, origin)
    content = _content(origin[name])
    path = practice.directory / name
    if _same(path, content):
        return Reset(name, "same")
    if not path.parent.resolve().is_relative_to(practice.directory.resolve()):
        raise GraderError(f"`{name}` is outside of `{practice.directory}`, through a symlink")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".grader-", dir=path.parent)
    try:
        with open(handle, "wb") as stream:
            stream.write(content)
        os.chmod(temporary, 0o666 & ~_umask())
        backup = _back_up(path) if os.path.lexists(path) else None
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if backup is None:
        return Reset(name, "restored")
    return Reset(name, "replaced", name.removesuffix(path.name) + backup)


def _name_in(practice: Practice, file: str, origin: Mapping[str, object]) -> str:
    """The key of `file` in the origin; `file` is relative to the practice, or to here."""
    inside = os.path.normpath(file).replace(os.sep, "/")
    if inside in origin:
        return inside
    root = practice.directory.resolve()
    here = Path(os.path.abspath(file))
    with contextlib.suppress(ValueError):
        inside = (here.parent.resolve() / here.name).relative_to(root).as_posix()
    if inside in origin:
        return inside
    same = [name for name in origin if Path(name).name == here.name]
    known = "\n".join(f"  {name}" for name in origin)
    raise GraderError(
        f"`{file}` is no file of chapter {practice.chapter.slug}",
        hint=f"did you mean `{same[0]}`?" if len(same) == 1 else f"the files are\n{known}",
    )


def _back_up(path: Path) -> str:
    """Keep what stands at `path` under the first free name of FILE.bak, FILE.bak.1, ..."""
    for name in _backup_names(path.name):
        backup = path.with_name(name)
        if os.path.lexists(backup):
            continue
        if path.is_dir() or path.is_symlink():
            os.rename(path, backup)
            return name
        try:
            os.link(path, backup)  # fails where another process was quicker; path stays in place
        except FileExistsError:
            continue
        except OSError:  # a file system without hard links
            with open(backup, "xb") as stream:
                stream.write(path.read_bytes())
        return name
    raise AssertionError("unreachable")


def _backup_names(name: str) -> Iterator[str]:
    yield f"{name}.bak"
    number = 1
    while True:
        yield f"{name}.bak.{number}"
        number += 1


def _write(course: Course, practice: Practice) -> None:
    """Write the whole directory, or nothing: composed in a temporary folder, then put in place."""
    directory = practice.directory
    refuse_place(course, directory)
    files = practice.files(course)
    files[MARKER] = _marker(practice).encode()
    made: list[Path] = []
    try:
        if directory.is_dir():
            _fill(directory, files)
        else:
            made = _make_parents(directory)
            with _workshop(directory.parent) as workshop:
                copy_files(files, workshop / "new")
                os.rename(workshop / "new", directory)
    except BaseException as error:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            raise GraderError(f"`{directory}` cannot be made: {_reason(error)}") from None
        raise


def refuse_place(course: Course, directory: Path) -> None:
    """Raise GraderError if a new practice directory must not be made at `directory`."""
    try:
        resolved = directory.resolve()
        taken = os.path.lexists(directory)
        empty = directory.is_dir() and not any(directory.iterdir())
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symlinks
        raise GraderError(f"`{directory}` cannot be used: {_reason(error)}") from None
    for root in {course.root, packaged_root()}:
        for folder in ("chapters", "solutions"):
            if resolved.is_relative_to((root / folder).resolve()):
                raise GraderError(
                    f"`{directory}` is inside the course's own `{folder}`",
                    hint="choose a directory of your own, such as `mydir`",
                )
    if not taken or empty:
        return
    if is_practice(directory):
        raise GraderError(
            f"`{directory}` exists already; nothing in it was changed",
            hint=f"`grader test {shlex.quote(str(directory))}` grades it; or choose a new name",
        )
    what = "is not empty" if directory.is_dir() else "is not a directory"
    raise GraderError(
        f"`{directory}` exists and {what}; nothing in it was changed",
        hint="give the name of a directory that does not exist yet",
    )


def refuse_nesting(directory: Path) -> None:
    """Raise GraderError if a new practice would stand inside another one.

    Who stands in `mydir` and repeats the command that made it would find a second, empty one.
    """
    for above in Path(os.path.abspath(directory)).parents:
        if is_practice(above):
            here = os.path.relpath(above)
            hint = f"`grader test {shlex.quote(here)}` grades that one"
            beside = above.parent / directory.name
            if not os.path.lexists(beside):
                hint += f"; `{os.path.relpath(beside)}` would stand beside it"
            raise GraderError(
                f"`{directory}` would stand inside the practice directory `{here}`", hint=hint
            )


@contextlib.contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=".grader-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _fill(directory: Path, files: Mapping[str, Path | bytes]) -> None:
    """Move everything into an empty directory, which may be somebody's working directory.

    The marker goes last: what was cut short is no practice.
    """
    moved: list[Path] = []
    with _workshop(directory) as workshop:
        copy_files(files, workshop / "new")
        names = sorted(os.listdir(workshop / "new"), key=lambda name: (name == MARKER, name))
        try:
            for name in names:
                os.rename(workshop / "new" / name, directory / name)
                moved.append(directory / name)
        except BaseException:
            for path in moved:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise


def _make_parents(directory: Path) -> list[Path]:
    """Make the folders above `directory` that are missing; returns them, outermost first."""
    missing: list[Path] = []
    for folder in directory.parents:
        if os.path.lexists(folder):
            break
        missing.insert(0, folder)
    for at, folder in enumerate(missing):
        try:
            folder.mkdir()
        except OSError:
            for made in reversed(missing[:at]):
                made.rmdir()
            raise
    return missing


def _marker(practice: Practice) -> str:
    """The marker's text. `from` keeps what `--from` took, so that `reset` knows it for ever."""
    lines = [
        "# Written by `grader`: it says what this directory is. Leave it as it is.",
        f"chapter = {_quoted(practice.chapter.slug)}",
        f"course_version = {_quoted(practice.version)}",
        f"origin = {_quoted(practice.origin)}",
    ]
    if practice.previous:
        lines += ["", "# the earlier practice's files, packed, for `grader reset`", "[from]"]
        for name, content in practice.previous.items():
            packed = base64.b64encode(zlib.compress(content, 9)).decode()
            lines.append(f"{_quoted(name)} = {_quoted(packed)}")
    return "\n".join(lines) + "\n"


def _unpack(packed: str) -> bytes:
    try:
        compressed = base64.b64decode(packed, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    unpacking = zlib.decompressobj()
    content = unpacking.decompress(compressed, LIMIT)  # a small text can unpack to terabytes
    if not unpacking.eof:
        raise ValueError("a file in `from` is not whole, or is far too large")
    return content


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a JSON string is a TOML basic string


def _content(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _same(path: Path, content: bytes) -> bool:
    return not path.is_symlink() and read_regular(path) == content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise GraderError(f"`{path}` cannot be read: {_reason(error)}") from None


def _bad_marker(directory: Path, reason: str) -> GraderError:
    return GraderError(
        f"`{directory / MARKER}` cannot be read: {reason}",
        hint="make a new practice directory, and copy your files into it",
    )


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
