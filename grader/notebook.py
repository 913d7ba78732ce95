"""The code under study in a notebook, and the verb that opens one.

In a notebook: `from grader.notebook import collect, load`, then `load("05")`. It says which code it
found and never takes another one silently. `load` may be called again: `mini_agent` is then
imported anew, so that a cell shows what was just saved.
"""

import atexit
import contextlib
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from grader.checkpoint import compose_target
from grader.course import Chapter, Course, load_course
from grader.errors import GraderError
from grader.practice import MARKER, open_practice

T = TypeVar("T")

COURSE = "GRADER_NOTEBOOK_COURSE"  # the root of the course that the notebook belongs to
PRACTICE = "GRADER_NOTEBOOK_PRACTICE"  # the practice directory to study in place of the reference

_PACKAGE = "mini_agent"


# Inside a notebook


@dataclass(frozen=True, slots=True)
class Code:
    """Which code `mini_agent` is in this notebook."""

    chapter: str  # the slug
    practice: Path | None  # None: the reference solution

    def __repr__(self) -> str:
        if self.practice is None:
            return f"`{_PACKAGE}` is the reference solution up to {self.chapter}"
        return f"`{_PACKAGE}` is your code in {self.practice}, a practice of {self.chapter}"


class NotThereYet(GraderError):
    """The notebook asks for code that the practice directory does not hold yet."""

    def _render_traceback_(self) -> list[str]:  # IPython shows this in place of a traceback
        return [str(self), *([f"hint: {self.hint}"] if self.hint else [])]


def load(chapter: str, directory: str | os.PathLike[str] | None = None) -> Code:
    """Let `import mini_agent` find the code of `chapter`, and `import views` the pictures.

    The code is the practice in `directory`; else the one that `grader notebook` was given; else the
    one around the working directory; else the reference solution. Raises GraderError for a
    directory that is no practice, or is one of an earlier chapter.
    """
    root = os.environ.get(COURSE)
    course = load_course(Path(root) if root else None)
    wanted = course.chapter(chapter)
    place = directory or os.environ.get(PRACTICE) or _practice_around(Path.cwd())
    if place is None:
        code, folder = Code(wanted.slug, None), _reference(course, wanted)
    else:
        practice = open_practice(course, Path(place))
        if practice.chapter.number < wanted.number:
            raise NotThereYet(
                f"`{place}` is a practice of {practice.chapter.slug}, and this notebook is about"
                f" the code of {wanted.slug}",
                hint=f"`{course.command} notebook {wanted.number}` shows the reference solution",
            )
        code, folder = Code(practice.chapter.slug, Path(place)), Path(place).resolve()
    _forget()
    sys.meta_path.insert(0, _Finder(folder))
    _make_importable(course.notebooks)
    _explain_what_is_missing(code)
    return code


async def collect(items: AsyncIterable[T]) -> list[T]:
    """All items of a stream. Code that is not written yet is raised as what it is.

    A model makes an `error` event of whatever goes wrong, a missing body included; that event
    would look like a reply that failed.
    """
    found = [item async for item in items]
    message = getattr(found[-1], "message", None) if found else None
    said = getattr(message, "error_message", None) or ""
    if re.match(r"step \d+\.\d+", said):
        raise NotImplementedError(said)
    return found


def _practice_around(directory: Path) -> Path | None:
    return next((d for d in (directory, *directory.parents) if (d / MARKER).is_file()), None)


def _reference(course: Course, chapter: Chapter) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="grader-notebook-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    compose_target(course, chapter, folder)
    return folder


class _FromSource(importlib.machinery.SourceFileLoader):
    """Compiles each module from its source: no bytecode is read or written."""

    def path_stats(self, path: Any) -> Any:
        raise OSError("no bytecode for code that is being written")


class _Finder:
    """Finds `mini_agent` in one folder and nowhere else, whatever is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _PACKAGE and not name.startswith(f"{_PACKAGE}."):
            return None
        where = self.folder.joinpath(*name.split("."))
        package = where / "__init__.py"
        file = package if package.is_file() else where.with_suffix(".py")
        if not file.is_file():
            raise ModuleNotFoundError(f"No module named {name!r} in {self.folder}", name=name)
        return importlib.util.spec_from_file_location(
            name,
            file,
            loader=_FromSource(name, str(file)),
            submodule_search_locations=[str(where)] if file is package else None,
        )


def _forget() -> None:
    """Undo an earlier `load`: the code may have changed since."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in [n for n in sys.modules if n == _PACKAGE or n.startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _explain_what_is_missing(code: Code) -> None:
    """Under IPython: say in words which step is missing, in place of a page of traceback."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return

    def tell(shell: Any, kind: type[BaseException], error: Any, trace: Any, tb_offset: Any) -> None:
        shown = missing(code, error)
        if shown is None:
            shell.set_custom_exc((), None)  # else this function would be asked again
            try:
                shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
            finally:
                shell.set_custom_exc((NotImplementedError, ImportError), tell)
        else:
            shell.showtraceback((type(shown), shown, trace))

    shell.set_custom_exc((NotImplementedError, ImportError), tell)


def missing(code: Code, error: BaseException) -> NotThereYet | None:
    """What to say about `error` where it comes from a practice's gap; None if it does not."""
    if code.practice is None:
        return None
    if isinstance(error, ImportError):
        if not (error.name or "").startswith(_PACKAGE):
            return None
        what = f"Your code does not have this yet: {error.msg}"
    else:
        what = f"Your code is not written that far: {error or 'NotImplementedError'}"
    step = re.match(r"step (\d+\.\d+)", str(error))
    option = f" --step {step[1]}" if step else ""
    return NotThereYet(
        f"{what}\n{code!r}.",
        hint=f"`grader test {code.practice}{option}` grades it. When it is written, run `load` and"
        " the cells below it again.",
    )


# From outside


def notebooks_of(course: Course, number: str | None = None) -> list[Path]:
    """The course's notebooks, all or those of one number, in order."""
    return sorted(course.notebooks.glob(f"{number or '[0-9][0-9]'}-*.ipynb"))


def find(course: Course, name: str) -> Path:
    """The notebook of that name or chapter: "05", "5", "sse-pipeline", "provider-adapter"."""
    known = notebooks_of(course)
    wanted = name.strip().lower()
    for path in known:
        if wanted in (path.stem, path.stem[:2], str(int(path.stem[:2])), path.stem[3:]):
            return path
    number = course.chapter(wanted).number  # or an error that names the chapters
    for path in known:
        if path.stem.startswith(number):
            return path
    listed = "\n".join(f"  {path.stem}" for path in known)
    raise GraderError(
        f"chapter {number} has no notebook", hint=f"the notebooks are\n{listed}" if listed else ""
    )


def copy_for_reader(source: Path, folder: Path) -> Path:
    """The reader's own copy of a notebook, in `folder`. One that is there already is kept."""
    copy = folder / source.name
    folder.mkdir(parents=True, exist_ok=True)
    if not copy.exists():
        shutil.copyfile(source, copy)
    return copy


def require(modules: Iterable[str]) -> None:
    """Raise GraderError that says what to install, unless all of `modules` are there."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        raise GraderError(
            f"notebooks need {' and '.join(f'`{name}`' for name in absent)}, not installed here",
            hint="`python -m pip install jupyter nbclient`: together they are this package's extra"
            " `notebooks`",
        )


def open_lab(course: Course, notebook: Path, practice: Path | None) -> int:
    """Run JupyterLab on `notebook` until the user ends it. Returns its exit code."""
    environment = os.environ | {COURSE: str(course.root)}
    environment.pop(PRACTICE, None)
    if practice is not None:
        environment[PRACTICE] = str(practice.resolve())
    command = [sys.executable, "-m", "jupyterlab", notebook.name]
    with contextlib.suppress(KeyboardInterrupt):  # JupyterLab hears it too, and asks
        return subprocess.run(command, cwd=notebook.parent, env=environment, check=False).returncode
    return 130
