"""Claims of notebooks: they have good form, run in a fresh kernel, and give what is stored.

A notebook belongs to the chapter whose number its name begins with; `00` belongs to the whole
course. nbclient is imported only to run one.
"""

import asyncio
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from grader import sandbox
from grader.claims.claim import Claim, Job, Stopped, Workspace
from grader.course import Chapter, Course
from grader.errors import GraderError
from grader.notebook import COURSE, notebooks_of, require

WHOLE_COURSE = "00"

_LOOK = 0.2  # seconds between two looks at the stop event
_SECONDS = 90.0  # for a whole notebook; each takes a few, and a machine may be busy
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class NotebookFailed(Exception):
    """A notebook did not run to its end. The text says which cell, and why."""


def jobs(space: Workspace) -> Iterator[Job]:
    """One job for each notebook of the chapter."""
    return _jobs(space.course, space.number, space.stop)


def course_jobs(course: Course, stop: threading.Event) -> Iterator[Job]:
    """One job for each notebook that belongs to the whole course."""
    return _jobs(course, WHOLE_COURSE, stop)


def write(course: Course, chapters: Sequence[Chapter]) -> Iterator[tuple[Path, bool, str]]:
    """Run the notebooks of `chapters` and store what they give.

    Yields each path, whether the file changed, and why it could not be run ("" if it could). A
    notebook that fails keeps its old outputs.
    """
    require(("nbclient", "ipykernel"))
    numbers = [chapter.number for chapter in chapters]
    if len(numbers) == len(course.chapters):
        numbers.insert(0, WHOLE_COURSE)
    for path in (path for number in numbers for path in notebooks_of(course, number)):
        try:
            text = run(course, path)
        except NotebookFailed as error:
            yield path, False, str(error)
            continue
        changed = path.read_text(encoding="utf-8") != text
        if changed:
            path.write_text(text, encoding="utf-8", newline="")
        yield path, changed, ""


def run(
    course: Course, path: Path, seconds: float = _SECONDS, stop: threading.Event | None = None
) -> str:
    """The notebook as a file, with the outputs of a run in a fresh kernel.

    Raises NotebookFailed where a cell fails or the time is up, and Stopped when `stop` is set
    meanwhile; the kernel is dead by then.
    """
    return asyncio.run(_run(course, path, seconds, stop or threading.Event()))


def _jobs(course: Course, number: str, stop: threading.Event) -> Iterator[Job]:
    for path in notebooks_of(course, number):
        yield Job(number, "notebook", functools.partial(_claims, course, path, stop))


def _claims(course: Course, path: Path, stop: threading.Event) -> Iterator[Claim]:
    def claim(id: str, text: str, found: str, todo: str) -> Claim:
        return Claim(
            id=f"{path.stem[:2]}.notebook.{path.stem[3:]}.{id}",
            kind="notebook",
            claim=text,
            holds=not found,
            where=path.relative_to(course.root).as_posix(),
            found=found,
            todo=todo,
        )

    stored, problem = _read(path)
    yield claim(
        "form",
        "it has one H1, no magics, fixed cell ids, and nothing of the machine that ran it",
        problem or "; ".join(_untidy(stored)),
        "correct it, or run `grader check --write-notebooks`",
    )
    if problem:
        return
    try:
        require(("nbclient", "ipykernel"))
        given = json.loads(run(course, path, stop=stop))
        found, todo = "", ""
    except GraderError as error:
        found, todo = str(error), error.hint
    except NotebookFailed as error:
        found, todo = str(error), "correct the cell, or the code that it shows"
    yield claim("runs", "it runs from top to bottom in a fresh kernel", found, todo)
    if not found:
        yield claim(
            "outputs",
            "its stored outputs are what it gives",
            first_difference(stored, given),
            "look at what changed, then run `grader check --write-notebooks`",
        )


def _read(path: Path) -> tuple[dict[str, Any], str]:
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(notebook["cells"], list):
            raise TypeError("`cells` is no list")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {}, f"it cannot be read: {type(error).__name__}: {error}"
    return notebook, ""


def _untidy(notebook: dict[str, Any]) -> Iterator[str]:
    cells = notebook["cells"]
    prose = "\n".join(_text(c["source"]) for c in cells if c["cell_type"] == "markdown")
    outside = re.sub(r"^```.*?^```", "", prose, flags=re.MULTILINE | re.DOTALL)
    headings = len(re.findall(r"^# ", outside, flags=re.MULTILINE))
    if headings != 1:
        yield f"{headings} headings of the first level"
    ids = [cell.get("id") for cell in cells]
    if None in ids or len(set(ids)) != len(ids):
        yield "a cell without an id of its own"
    if notebook.get("metadata") != _METADATA:
        yield "its metadata holds more than the kernel `python3`"
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    if [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        yield "its cells are not numbered as a fresh run numbers them"
    for cell in code:
        if re.search(r"^\s*[%!]", _text(cell["source"]), flags=re.MULTILINE):
            yield f"cell `{cell.get('id')}` has a magic"


def first_difference(stored: dict[str, Any], given: dict[str, Any]) -> str:
    """The first cell whose outputs differ, as a sentence; "" if there is none."""
    for one, other in zip(stored["cells"], given["cells"], strict=True):
        before, now = _outputs(one), _outputs(other)
        for kind in sorted({*before, *now}):
            if before.get(kind) != now.get(kind):
                return (
                    f"cell `{one.get('id')}`, {kind}: stored"
                    f" {_shown(before.get(kind), now.get(kind))}, now"
                    f" {_shown(now.get(kind), before.get(kind))}"
                )
    return ""


def _outputs(cell: dict[str, Any]) -> dict[str, str]:
    """What a cell gave, by kind: printed text, and each form of its value."""
    found: dict[str, str] = {}
    for output in cell.get("outputs", ()):
        if output["output_type"] == "stream":
            parts = {output["name"]: output["text"]}
        elif output["output_type"] == "error":
            parts = {"error": f"{output['ename']}: {output['evalue']}"}
        else:
            parts = output["data"]
        for kind, text in parts.items():
            found[kind] = found.get(kind, "") + _text(text)
    return found


def _text(source: Any) -> str:
    return "".join(source) if isinstance(source, list) else str(source)


def _shown(text: str | None, other: str | None) -> str:
    """The first line in which `text` is not `other`."""
    if text is None:
        return "nothing"
    known = (other or "").split("\n")
    for at, line in enumerate(text.split("\n")):
        if at >= len(known) or line != known[at]:
            return repr(line if len(line) <= 200 else f"{line[:200]}…")
    return "fewer lines"


async def _run(course: Course, path: Path, seconds: float, stop: threading.Event) -> str:
    import nbformat
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    class ThisPython(KernelSpecManager):  # type: ignore[misc]
        """`python3` is the Python that runs now, whatever kernels the user has installed."""

        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            launch = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(
                argv=[sys.executable, *launch], display_name="Python 3", language="python"
            )

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="grader-notebook-", ignore_cleanup_errors=True) as temp:
        manager = AsyncKernelManager(
            kernel_spec_manager=ThisPython(),
            connection_file=os.path.join(temp, "kernel.json"),
            transport="tcp" if sys.platform == "win32" else "ipc",
        )
        client = NotebookClient(notebook, km=manager, timeout=None, record_timing=False)
        try:
            async with asyncio.timeout(seconds):
                await _unless_stopped(
                    client.async_execute(
                        cwd=str(path.parent),
                        env=_environment(course, temp),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    ),
                    stop,
                )
        except TimeoutError:
            raise NotebookFailed(
                f"it had not ended after {seconds:.0f} s{_where(client)}"
            ) from None
        except CellExecutionError as error:
            lines = _COLOURS.sub("", error.traceback).rstrip().split("\n")[-12:]
            raise NotebookFailed("\n".join([f"a cell failed{_where(client)}", *lines])) from None
        except (DeadKernelError, RuntimeError):  # the second: it died while it started
            raise NotebookFailed(f"its kernel died{_where(client)}") from None
        finally:
            if client.kc is not None:
                client.kc.stop_channels()
            if manager.has_kernel:
                await manager.shutdown_kernel(now=True)
    notebook.metadata = nbformat.from_dict(_METADATA)
    return str(nbformat.writes(notebook, version=nbformat.NO_CONVERT)) + "\n"


async def _unless_stopped(work: Coroutine[Any, Any, Any], stop: threading.Event) -> None:
    """Wait for `work`. Raises Stopped when `stop`, which another thread sets, comes first."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=_LOOK)
            if stop.is_set():
                raise Stopped
        task.result()
    finally:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # fetched, or the event loop would report it later


def _where(client: Any) -> str:
    """In which cell the run stood."""
    done = client.code_cells_executed
    code = [cell for cell in client.nb.cells if cell.cell_type == "code"]
    at = next((cell for cell in code if _failed(cell)), None)
    if at is None:
        at = code[done] if done < len(code) else None
    return f", in cell `{at.get('id')}`" if at is not None else ""


def _failed(cell: Any) -> bool:
    return any(output.output_type == "error" for output in cell.outputs)


def _environment(course: Course, temp: str) -> dict[str, str]:
    """No keys, no user's start-up files, no proxy: the kernel gets little and writes nowhere."""
    places = dict.fromkeys(("HOME", "USERPROFILE", "APPDATA", "TMPDIR", "TEMP", "TMP"), temp)
    return {
        **sandbox.environment(),
        **places,
        COURSE: str(course.root),
        "IPYTHONDIR": os.path.join(temp, "ipython"),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),  # where this `grader` is
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
    }
