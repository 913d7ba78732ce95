"""The notebooks: they hold for the reference, for a finished practice, and for other parameters.

Most tests run the cells in plain Python, as a kernel would, so that they need no Jupyter. The tests
at the end need the extra `notebooks`.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from grader import cli, notebook
from grader.claims import notebook as claims
from grader.claims.claim import Claim
from grader.course import Course, load_course
from grader.errors import GraderError
from grader.practice import create_practice, export_target

ROOT = Path(__file__).resolve().parents[1]
COURSE = load_course(ROOT)
NOTEBOOKS = notebook.notebooks_of(COURSE)
NAMES = [path.stem for path in NOTEBOOKS]
CHAPTERS = {name: "10" if name.startswith("00") else name[:2] for name in NAMES}

# Runs a notebook's cells and prints, as JSON, what each gave or the first failure.
PLAYER = """
import ast, asyncio, contextlib, inspect, io, json, sys

path, changes = sys.argv[1], json.loads(sys.argv[2])
cells = json.load(open(path, encoding="utf-8"))["cells"]
space = {"__name__": "__main__"}
gave = {}

async def play():
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        source = changes.get(cell["id"], "".join(cell["source"]))
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(printed):
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                code = compile(tree, cell["id"], "exec", flags=flags)
                made = eval(code, space)
                if inspect.iscoroutine(made):
                    await made
                if last is not None:
                    code = compile(ast.Expression(last.value), cell["id"], "eval", flags=flags)
                    value = eval(code, space)
                    if inspect.iscoroutine(value):
                        value = await value
        except BaseException as error:
            return {"cell": cell["id"], "error": f"{type(error).__name__}: {error}"}
        gave[cell["id"]] = {
            "stdout": printed.getvalue(),
            "text/plain": "" if value is None else repr(value),
            "text/html": value._repr_html_() if hasattr(value, "_repr_html_") else "",
        }
    return None

failure = asyncio.run(play())
json.dump({"failure": failure, "gave": gave}, sys.stdout)
"""


def play(
    path: Path,
    *,
    course: Course = COURSE,
    practice: Path | None = None,
    changes: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> dict[str, Any]:
    """What the notebook's cells gave, with the sources in `changes` in place of some."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GRADER_")
    }
    environment |= {notebook.COURSE: str(course.root), "PYTHONUTF8": "1"}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    if practice is not None:
        environment[notebook.PRACTICE] = str(practice)
    ran = subprocess.run(
        [sys.executable, "-c", PLAYER, str(path), json.dumps(changes or {})],
        cwd=cwd or path.parent,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def path_of(name: str) -> Path:
    return next(path for path in NOTEBOOKS if path.stem.startswith(name))


def prove(course: Course, path: Path) -> list[Claim]:
    """What check says of one notebook."""
    return list(claims._claims(course, path, threading.Event()))


def stored(path: Path) -> dict[str, dict[str, str]]:
    """The outputs that stand in the file, by cell."""
    found: dict[str, dict[str, str]] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            found[cell["id"]] = {"stdout": "", "text/plain": "", "text/html": ""}
            for output in cell["outputs"]:
                parts = output.get("data") or {"stdout": output["text"]}
                found[cell["id"]] |= {kind: "".join(text) for kind, text in parts.items()}
    return found


def test_each_promised_notebook_is_there() -> None:
    """Two of the course's halves, one for each provider, and the whole run."""
    assert NAMES == [
        "00-offline-trace",
        "05-sse-pipeline",
        "07-agent-loop",
        "10-second-provider",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_it_gives_what_is_stored_in_it(name: str) -> None:
    """Every printed text, every value and every picture, with the reference solution."""
    path = path_of(name)

    result = play(path)

    assert result["failure"] is None
    assert result["gave"] == stored(path)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_good_form(name: str) -> None:
    """One H1, no magics, fixed cell ids, nothing of a machine; a question before most code."""
    text = path_of(name).read_text(encoding="utf-8")
    form = next(claims._claims(COURSE, path_of(name), threading.Event()))

    assert form.holds, form.found
    assert text.count("**Predict.**") >= 6
    assert not re.search(r"0x[0-9a-f]{6,}|/home/|/tmp/|\bC:\\\\", text)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_on_a_finished_practice_and_says_so(name: str, tmp_path: Path) -> None:
    """The same cells, on the learner's own files; nothing but the notebook's folder is added."""
    mine = tmp_path / "mine"
    export_target(COURSE, COURSE.chapter(CHAPTERS[name]), mine)
    before = sorted(mine.rglob("*"))

    result = play(path_of(name), practice=mine)

    assert result["failure"] is None
    assert f"is your code in {mine}" in result["gave"]["load"]["text/plain"]
    assert sorted(mine.rglob("*")) == before


def test_a_notebook_inside_a_practice_is_about_that_practice(tmp_path: Path) -> None:
    """Opened by plain JupyterLab, its working directory is all that it knows."""
    mine = tmp_path / "mine"
    export_target(COURSE, COURSE.chapter("07"), mine)
    copy = notebook.copy_for_reader(path_of("07"), mine / "notebooks")

    result = play(copy)

    assert result["failure"] is None
    assert f"is your code in {mine}" in result["gave"]["load"]["text/plain"]


# A bug for each notebook: (file, find, replace, the cell that must fail).
BUGS = [
    (
        "05-sse-pipeline",
        "05-provider-adapter/mini_agent/sse.py",
        "piece = decoder.decode(chunk)",
        'piece = chunk.decode("utf-8", "replace")',
        "decode-naive",
    ),
    (
        "05-sse-pipeline",
        "05-provider-adapter/mini_agent/provider_adapter.py",
        "call = calls.add(await reply.open_tool_call())",
        "await reply.open_tool_call()\n                        call = calls.add(chunk.index or 0)",
        "events-figures",
    ),
    (
        "05-sse-pipeline",
        "05-provider-adapter/mini_agent/providers/openai_compatible.py",
        "reason, usage = chunk.reason or reason, chunk.usage or usage",
        "reason, usage = chunk.reason or reason, usage or chunk.usage and None",
        "whole-run",
    ),
    (
        "07-agent-loop",
        "07-agent-loop/mini_agent/agent_loop.py",
        "return tuple(task.result() for task in tasks)",
        "return tuple(task.result() for task in reversed(tasks))",
        "parallel-figures",
    ),
    (
        "07-agent-loop",
        "07-agent-loop/mini_agent/agent_loop.py",
        "turns == max_turns",
        "turns > max_turns",
        "twelve-run",
    ),
    (
        "10-second-provider",
        "10-second-provider/mini_agent/providers/anthropic.py",
        'if messages and messages[-1]["role"] == role:',
        "if False:",
        "merge-run",
    ),
    (
        "10-second-provider",
        "05-provider-adapter/mini_agent/sse.py",
        "self._line = [lines.pop()]",
        "lines.pop()\n        self._line = []",
        "messages-run",
    ),
    (
        "00-offline-trace",
        "09-cancel-and-extensions/mini_agent/agent_loop.py",
        "messages=messages_for_model((*self._context.messages, *self._new)),",
        "messages=messages_for_model((*self._context.messages, *self._new[:1])),",
        "requests-run",
    ),
    (
        "00-offline-trace",
        "03-model-events/mini_agent/reply.py",
        "await self._stream.send(ToolCallDeltaEvent(index, delta, self.content))",
        "await self._stream.send(ToolCallDeltaEvent(index, delta, ()))",
        "partials-run",
    ),
]


@pytest.fixture
def own_course(tmp_path: Path) -> Course:
    """A copy of the course that a test may break."""
    root = tmp_path / "course"
    junk = shutil.ignore_patterns("__pycache__", ".*")
    for folder in ("chapters", "solutions", "notebooks"):
        shutil.copytree(ROOT / folder, root / folder, ignore=junk)
    return load_course(root)


@pytest.mark.parametrize(
    ("name", "file", "find", "replace", "cell"), BUGS, ids=[f"{b[0][:2]}-{b[4]}" for b in BUGS]
)
def test_a_bug_in_the_reference_makes_a_cell_fail(
    own_course: Course, name: str, file: str, find: str, replace: str, cell: str
) -> None:
    """It is the code under study that is looked at, and an assert that looks."""
    path = own_course.root / "solutions" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(find) == 1
    path.write_text(text.replace(find, replace), encoding="utf-8")

    result = play(own_course.notebooks / f"{name}.ipynb", course=own_course)

    assert result["failure"] is not None
    assert result["failure"]["cell"] == cell, result["failure"]


PARAMETERS = [
    *(("05", {"chunk-size": f"CHUNK_SIZE = {size}"}) for size in (1, 3, 58, 5000)),
    *(("05", {"split-at": f"SPLIT_AT = {at}"}) for at in (0, 48, 503, 9999)),
    ("05", {"payload": "PAYLOAD = '[]'"}),
    ("05", {"payload": 'PAYLOAD = \'{"choices":[{"delta":{"content":"<b>"}}]}\''}),
    ("05", {"own-bytes": "MY_BODY, MY_CHUNK_SIZE = b'', 1"}),
    ("05", {"own-bytes": "MY_BODY, MY_CHUNK_SIZE = b'\\xff\\x00data: x\\n\\n', 2"}),
    ("05", {"own-bytes": "MY_BODY, MY_CHUNK_SIZE = BODY[:200], 1"}),
    (
        "05",
        {
            "fixture": "FIXTURE = [TextChunk('x'), ToolChunk(4, 'a', 'b', '{}'), "
            "FinishChunk('tool_calls')]"
        },
    ),
    ("07", {"finish-order": "FINISH_ORDER = ['b', 'a', 'c']", "max-turns": "MAX_TURNS = 1"}),
    ("07", {"finish-order": "FINISH_ORDER = ['a', 'b', 'c']", "max-turns": "MAX_TURNS = 9"}),
    ("10", {"parameters": "CHUNK_SIZE, BYTES = 1, True", "calls": "CALLS = 1"}),
    ("10", {"parameters": "CHUNK_SIZE, BYTES = 5000, False", "calls": "CALLS = 7"}),
    ("10", {"parameters": "CHUNK_SIZE, BYTES = 37, True", "size": "SIZE = 1"}),
    ("10", {"size": "SIZE = 1217", "key": "KEY = 'sk-<b>'"}),
    (
        "00",
        {
            "parameters": "PROMPT, FILE_TEXT, ANSWER, CHUNK_SIZE = "
            "'hi', '<b>第一行\\n\\x1b[2J', '🎈 完成', 1"
        },
    ),
    ("00", {"parameters": "PROMPT, FILE_TEXT, ANSWER, CHUNK_SIZE = 'hi', '', 'x', 500"}),
]


@pytest.mark.parametrize(("name", "changes"), PARAMETERS, ids=range(len(PARAMETERS)))
def test_it_holds_for_other_parameters(name: str, changes: dict[str, str]) -> None:
    """A learner changes the cells in capitals; what the asserts say must not change, does not."""
    assert play(path_of(name), changes=changes)["failure"] is None


# The code under study


def test_code_that_is_not_there_yet_is_no_fall_back(tmp_path: Path) -> None:
    """The starter of chapter 05 lacks a name: the import says so, in the learner's directory."""
    mine = tmp_path / "mine"
    create_practice(COURSE, COURSE.chapter("05"), mine)

    failure = play(path_of("05"), practice=mine)["failure"]

    assert failure["cell"] == "imports"
    assert failure["error"].startswith("ImportError: cannot import name 'ToolDefinition'")
    assert str(mine) in failure["error"]


def test_a_body_that_is_not_written_is_raised_as_that() -> None:
    """A model's stream makes an `error` event of it; `collect` does not let that pass."""
    changes = {
        "events-each": "import mini_agent.provider_adapter as adapter\n"
        "from grader.testing import aiter_of\n"
        "class Message: error_message = 'step 5.2: _fill'\n"
        "class Event: message = Message()\n"
        "await collect(aiter_of(Event()))"
    }

    failure = play(path_of("05"), changes=changes)["failure"]

    assert failure == {"cell": "events-each", "error": "NotImplementedError: step 5.2: _fill"}


def test_what_is_missing_is_said_in_words(tmp_path: Path) -> None:
    """Which step, whose code, and the command that grades it; only for gaps of the learner's."""
    mine = notebook.Code("05-provider-adapter", tmp_path)
    reference = notebook.Code("05-provider-adapter", None)
    gap = NotImplementedError("step 5.3: read_sse_messages")
    absent = ImportError("cannot import name 'X' from 'mini_agent.types'", name="mini_agent.types")

    said = notebook.missing(mine, gap)

    assert said is not None
    assert "step 5.3: read_sse_messages" in str(said)
    assert f"your code in {tmp_path}" in str(said)
    assert "--step 5.3" in said.hint
    assert notebook.missing(mine, absent) is not None
    assert notebook.missing(mine, ImportError("no module", name="numpy")) is None
    assert notebook.missing(reference, gap) is None


@pytest.mark.parametrize(("chapter", "ok"), [("04", False), ("05", True), ("06", True)])
def test_a_practice_must_have_reached_the_chapter(tmp_path: Path, chapter: str, ok: bool) -> None:
    """A later one holds the code too. An earlier one is an error, and not the reference."""
    mine = tmp_path / "mine"
    export_target(COURSE, COURSE.chapter(chapter), mine)

    failure = play(path_of("05"), practice=mine)["failure"]

    if ok:
        assert failure is None
    else:
        assert failure["cell"] == "load"
        assert failure["error"].startswith("NotThereYet: ")


def test_a_directory_that_is_no_practice_is_an_error(tmp_path: Path) -> None:
    """Nothing else is taken in its place."""
    failure = play(path_of("05"), practice=tmp_path)["failure"]

    assert failure["cell"] == "load"
    assert "is no practice directory" in failure["error"]


def test_load_again_sees_what_was_saved(tmp_path: Path) -> None:
    """Also within the same second, and with the same size of file."""
    mine = tmp_path / "mine"
    export_target(COURSE, COURSE.chapter("05"), mine)
    file = str(mine / "mini_agent/sse.py")
    again = (
        "from pathlib import Path\n"
        "text = Path(FILE).read_text(encoding='utf-8')\n"
        "Path(FILE).write_text(text.replace('\"utf-8-sig\"', '\"utf-9-sig\"'), encoding='utf-8')\n"
        "load('05')\n"
        "from mini_agent.sse import decode_chunks as new\n"
        "try:\n"
        "    await collect(new(aiter_of(b'x')))\n"
        "except LookupError as error:\n"
        "    print(error)\n"
        "print(new is decode_chunks)\n"
    )

    result = play(path_of("05"), practice=mine, changes={"body": f"FILE = {file!r}\n{again}"})

    assert result["gave"]["body"]["stdout"] == "unknown encoding: utf-9-sig\nFalse\n"


# The verb


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Exit code 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    code = cli.main(["notebook", "05", "--course", str(ROOT)])

    assert code == 2
    assert "pip install jupyter nbclient" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_it_opens_a_copy_on_the_practice_and_keeps_an_old_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """JupyterLab is told the course and the practice; what the learner wrote stays."""
    asked: list[Any] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append((command[1:], options["cwd"], options["env"]))
        return subprocess.CompletedProcess(command, 0)

    mine = tmp_path / "mine"
    export_target(COURSE, COURSE.chapter("05"), mine)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(notebook.subprocess, "run", run)

    assert cli.main(["notebook", "provider-adapter", "mine", "--course", str(ROOT)]) == 0
    copy = mine / "notebooks/05-sse-pipeline.ipynb"
    assert copy.read_bytes() == path_of("05").read_bytes()
    copy.write_text("mine", encoding="utf-8")
    assert cli.main(["notebook", "5", "mine", "--course", str(ROOT)]) == 0
    assert copy.read_text(encoding="utf-8") == "mine"

    command, cwd, environment = asked[-1]
    assert command == ["-m", "jupyterlab", "05-sse-pipeline.ipynb"]
    assert (tmp_path / cwd).resolve() == copy.parent.resolve()
    assert environment[notebook.PRACTICE] == str(mine.resolve())
    assert environment[notebook.COURSE] == str(ROOT)


@pytest.mark.parametrize("name", ["00", "offline-trace", "00-offline-trace", "0"])
def test_a_notebook_is_found_by_each_of_its_names(name: str) -> None:
    """Number, words, or both."""
    assert notebook.find(COURSE, name).stem == "00-offline-trace"


def test_a_chapter_without_a_notebook_is_an_error_that_lists_them() -> None:
    """So is a name that is nothing."""
    with pytest.raises(GraderError, match="chapter 01 has no notebook") as error:
        notebook.find(COURSE, "messages")
    assert "05-sse-pipeline" in error.value.hint
    with pytest.raises(GraderError, match="there is no chapter `quux`"):
        notebook.find(COURSE, "quux")


# What check proves


def test_without_the_extra_the_claim_fails_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook is never skipped."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    form, runs = prove(COURSE, path_of("05"))

    assert form.holds
    assert not runs.holds
    assert runs.id == "05.notebook.sse-pipeline.runs"
    assert "nbclient" in runs.found
    assert "pip install" in runs.todo


def write_notebook(path: Path, *sources: str, **changes: Any) -> None:
    """A small notebook with these code cells, as if it had been run."""
    title = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": ["# T"]}
    code = [
        {
            "cell_type": "code",
            "id": f"cell-{at}",
            "metadata": {},
            "source": source,
            "outputs": [],
            "execution_count": at,
        }
        for at, source in enumerate(sources, 1)
    ]
    whole = {"cells": [title, *code], "metadata": claims._METADATA}
    whole |= {"nbformat": 4, "nbformat_minor": 5} | changes
    path.write_text(json.dumps(whole), encoding="utf-8")


@pytest.mark.parametrize(
    ("sources", "changes", "problem"),
    [
        (["%matplotlib inline"], {}, "cell `cell-1` has a magic"),
        (["x = 1\n!pip install y"], {}, "cell `cell-1` has a magic"),
        (["1"], {"metadata": {"language_info": {"version": "3.11"}}}, "its metadata"),
        (["1"], {"cells": []}, "0 headings"),
        (["1"], {"cells": 5}, "it cannot be read"),
    ],
)
def test_bad_form_is_named(
    own_course: Course, sources: list[str], changes: dict[str, Any], problem: str
) -> None:
    """Before anything is run."""
    path = own_course.notebooks / "05-x.ipynb"
    write_notebook(path, *sources, **changes)

    form = next(claims._claims(own_course, path, threading.Event()))

    assert not form.holds
    assert problem in form.found


def test_the_first_difference_is_shown_with_its_cell(own_course: Course) -> None:
    """The line, as it is stored and as it is now."""
    before = json.loads(path_of("05").read_text(encoding="utf-8"))
    after = json.loads(path_of("05").read_text(encoding="utf-8"))
    cell = next(cell for cell in after["cells"] if cell["id"] == "body-figures")
    cell["outputs"][0]["text"][1] = "504 bytes\n"

    found = claims.first_difference(before, after)

    assert found.startswith("cell `body-figures`, stdout: stored '503 bytes,")
    assert found.endswith("now '504 bytes'")
    assert claims.first_difference(before, before) == ""


# With the extra

needs_extra = pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None,
    reason="the extra `notebooks` is not installed",
)


@needs_extra
def test_every_claim_of_a_real_notebook_holds() -> None:
    """Form, run and outputs, in a fresh kernel; and stored anew, the file stays as it is."""
    proved = list(prove(COURSE, path_of("07")))

    assert [claim.id.rpartition(".")[2] for claim in proved] == ["form", "runs", "outputs"]
    assert [claim.found for claim in proved] == ["", "", ""]
    assert claims.run(COURSE, path_of("00")) == path_of("00").read_text(encoding="utf-8")


@needs_extra
def test_a_cell_that_fails_is_named(own_course: Course) -> None:
    """With the end of its traceback, free of colours."""
    path = own_course.notebooks / "05-x.ipynb"
    write_notebook(path, "x = 1", "assert x == 2, 'x is one'", "y = 1")

    runs = list(prove(own_course, path))[-1]

    assert not runs.holds
    assert "a cell failed, in cell `cell-2`" in runs.found
    assert "AssertionError: x is one" in runs.found
    assert "\x1b" not in runs.found


@needs_extra
@pytest.mark.skipif(sys.platform == "win32", reason="asks `os.kill` whether the kernel lives")
def test_a_notebook_that_hangs_is_ended_with_its_kernel(own_course: Course, tmp_path: Path) -> None:
    """At the limit for the whole, and nothing is left running."""
    path, note = own_course.notebooks / "05-x.ipynb", tmp_path / "pid"
    write_notebook(
        path,
        f"import os, pathlib; pathlib.Path({str(note)!r}).write_text(str(os.getpid()))",
        "while True: pass",
    )

    with pytest.raises(claims.NotebookFailed, match="it had not ended after 8 s"):
        claims.run(own_course, path, seconds=8)

    pid = int(note.read_text())
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the kernel lives")


@needs_extra
def test_a_kernel_that_dies_is_no_pass(own_course: Course) -> None:
    """It ends at once, and is said to have died."""
    path = own_course.notebooks / "05-x.ipynb"
    write_notebook(path, "import os; os._exit(0)")

    with pytest.raises(claims.NotebookFailed, match="kernel died"):
        claims.run(own_course, path, seconds=60)


@needs_extra
def test_outputs_are_written_and_then_hold(own_course: Course) -> None:
    """`--write-notebooks` stores what differs; a notebook that fails keeps what it had."""
    for path in notebook.notebooks_of(own_course):
        path.unlink()
    good, bad = own_course.notebooks / "05-a.ipynb", own_course.notebooks / "05-b.ipynb"
    write_notebook(good, "print('one')", "1 + 1")
    write_notebook(bad, "raise ValueError('no')")
    chapter = [own_course.chapter("05")]
    old = bad.read_bytes()

    first = list(claims.write(own_course, chapter))
    second = list(claims.write(own_course, chapter))

    assert [(path.stem, changed) for path, changed, _ in first] == [("05-a", True), ("05-b", False)]
    assert [changed for _, changed, _ in second] == [False, False]
    assert "ValueError: no" in first[1][2]
    assert bad.read_bytes() == old
    assert [claim.found for claim in prove(own_course, good)] == ["", "", ""]


@needs_extra
def test_a_kernel_gets_no_keys(own_course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor anything else of the caller's environment that a run does not need."""
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    monkeypatch.setenv("PYTHONSTARTUP", "x")
    path = own_course.notebooks / "05-x.ipynb"
    write_notebook(path, "import os; print('OPENAI_API_KEY' in os.environ, len(os.environ) < 40)")

    given = json.loads(claims.run(own_course, path))

    assert given["cells"][1]["outputs"][0]["text"] == ["False True\n"]


@needs_extra
def test_ipython_shows_a_gap_in_words_and_no_page_of_traceback(tmp_path: Path) -> None:
    """And shows any other error as ever."""
    mine = tmp_path / "mine"
    create_practice(COURSE, COURSE.chapter("05"), mine)
    cells = [
        f"from grader.notebook import load; load('05', {str(mine)!r})",
        "from mini_agent.types import ToolDefinition",
        "import numpy_that_is_not_there",
        "from mini_agent.types import ToolDefinition",
    ]
    script = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(colors='nocolor')\n"
        f"for cell in {cells!r}: shell.run_cell(cell)\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )

    assert ran.stdout.count("Your code does not have this yet: cannot import name") == 2
    assert ran.stdout.count(f"hint: `grader test {mine}` grades it.") == 2
    assert ran.stdout.count("Traceback") == 1
