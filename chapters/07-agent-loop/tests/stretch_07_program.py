"""Chapter 07, stretch: the REPL and the program, through a pipe and through a terminal."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from grader.testing import assert_same
from mini_agent.main import SYSTEM_PROMPT, Repl, result_line, usage_line
from mini_agent.offline import arithmetic_in, offline_model, paths_in
from mini_agent.scripted_model import ScriptedModel, tool_call
from mini_agent.tools import ToolRegistry, calc_tool, read_tool
from mini_agent.types import ToolResultMessage, Usage, assistant_message, text

TARGET = Path(sys.modules["mini_agent"].__path__[0]).parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text("# Project\n\n正在\n", encoding="utf-8")
    return tmp_path


def program(project: Path, lines: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`python -m mini_agent` in `project` with `lines` on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "mini_agent"],
        cwd=project,
        env=environment(project) | more,
        input=lines,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    return kept | {
        "PYTHONPATH": str(TARGET),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home),
        "LANG": "C.UTF-8",
    }


def test_piped_arithmetic(project: Path) -> None:
    """One line in, the answer out: no banner, no prompt, exit code 0."""
    done = program(project, "what is 12*8\n")
    assert_same((done.returncode, done.stderr), (0, ""))
    assert_same(
        done.stdout.splitlines()[:-1],
        [
            "Let me calculate that.",
            '[tool call] calc {"expression":"12*8"}',
            "[tool result] calc: 96",
            "12*8 = 96",
        ],
    )
    assert done.stdout.splitlines()[-1].startswith("[usage] 2 turns, ")


def test_piped_conversation(project: Path) -> None:
    """Several lines, the last without a newline, in two languages."""
    done = program(project, "你好\n\n读取 README.md\n算一下 (1+2)**3")
    assert_same((done.returncode, done.stderr), (0, ""))
    assert "[tool result] read: # Project (3 lines)" in done.stdout
    assert "(1+2)**3 = 27" in done.stdout


def test_piped_nothing(project: Path) -> None:
    """An empty input is a conversation without a prompt: nothing is said."""
    done = program(project, "")
    assert_same((done.returncode, done.stdout, done.stderr), (0, "", ""))


def test_piped_commands(project: Path) -> None:
    """/exit ends it, and what stands behind is not read."""
    done = program(project, "/help\n/exit\nwhat is 12*8\n")
    assert_same(done.returncode, 0)
    assert "/exit" in done.stdout
    assert "96" not in done.stdout


def test_piped_bytes_that_are_no_text(project: Path) -> None:
    """Bytes that are not UTF-8 do not end the program, and neither does an ASCII locale."""
    done = subprocess.run(
        [sys.executable, "-m", "mini_agent"],
        cwd=project,
        env=environment(project) | {"LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
        input=b"\xff\xfe hello\n\xe8\xaf\xbb\xe5\x8f\x96 README.md\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert_same((done.returncode, done.stderr), (0, b""))
    assert b"# Project" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="a closed pipe is told otherwise there")
def test_piped_into_a_reader_that_leaves(project: Path) -> None:
    """`python -m mini_agent | head -1`: no traceback when the reader has gone."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mini_agent"],
        cwd=project,
        env=environment(project),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):  # it may notice before all is written
        process.stdin.write(b"tell me something long\n" * 50)
        process.stdin.close()
    assert process.wait(timeout=60) == 1
    assert_same(process.stderr.read(), b"")
    process.stderr.close()


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a Unix thing")
@pytest.mark.parametrize(("keys", "code"), [(b"/exit\n", 0), (b"\x04", 0), (b"half\x03", 0)])
def test_terminal_ways_to_leave(project: Path, keys: bytes, code: int) -> None:
    """/exit, Ctrl+D and Ctrl+C at the prompt leave without a traceback."""
    output, returned = at_a_terminal(project, [keys])
    assert_same(returned, code, because=output)
    assert "Traceback" not in output
    assert "/help" in output


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a Unix thing")
def test_terminal_streams_and_asks_again(project: Path) -> None:
    """After an answer the prompt comes back; the output is that of the pipe."""
    output, returned = at_a_terminal(project, [b"what is 12*8\n", b"/exit\n"])
    assert_same(returned, 0, because=output)
    assert "12*8 = 96" in output
    assert output.count("you> ") >= 2


def at_a_terminal(project: Path, keys: list[bytes]) -> tuple[str, int]:
    """What the program shows at a pseudo-terminal, with each of `keys` typed at a prompt."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job would hand down "ignore"
        os.chdir(project)
        env = environment(project) | {"TERM": "dumb"}
        os.execvpe(sys.executable, [sys.executable, "-m", "mini_agent"], env)
    shown = b""
    end = time.monotonic() + 30
    typed = 0
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.5)[0]:
            if typed == len(keys) and keys[-1].endswith(b"\x03"):
                os.write(terminal, b"\x03")  # it may have come before `input()` was listening
            continue
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the other end is closed: the program has left
            break
        if typed < len(keys) and shown.count(b"you> ") > typed and shown.endswith(b"you> "):
            os.write(terminal, keys[typed])
            typed += 1
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return shown.decode("utf-8", errors="replace"), os.waitstatus_to_exitcode(status)


def test_repl_spells_out_what_a_terminal_would_obey(project: Path) -> None:
    """A file with escape sequences is shown, and not carried out."""
    (project / "evil.txt").write_text("\x1b[2J\x1b]0;owned\x07 text", encoding="utf-8")
    shown = repl_output(project, ["read evil.txt"])
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


def test_repl_shows_a_long_result_short(project: Path) -> None:
    """A result is one line of the screen, however long its first line is."""
    (project / "long.txt").write_text("x" * 5000, encoding="utf-8")
    shown = repl_output(project, ["read long.txt"]).splitlines()
    assert all(len(line) < 120 for line in shown if line.startswith("[tool"))


def test_repl_says_what_went_wrong(project: Path) -> None:
    """A tool error, a turn limit, a cut-off reply and a failed one are each a line."""
    assert "[tool error] read: cannot read nope.txt" in repl_output(project, ["read nope.txt"])
    assert "[tool error] calc: " in repl_output(project, ["what is 9**9**9"])
    cut = ScriptedModel([assistant_message([text("很久以")], "length")])
    assert "[cut off]" in repl_output(project, ["x"], cut)
    failed = ScriptedModel([assistant_message([], "error", error_message="HTTP 500: no")])
    assert "[error] HTTP 500: no" in repl_output(project, ["x"], failed)


def test_repl_stops_at_the_turn_limit(project: Path) -> None:
    """A model that never stops asking is stopped, and that is said."""
    endless = ScriptedModel(
        rules=[lambda _: [tool_call("call-1", "calc", {"expression": "1+1"})]]
    )
    written: list[str] = []
    repl = Repl(endless, tools(project), write=written.append, max_turns=3)
    assert_same(repl.run(["go"]), False)
    assert_same(endless.call_count, 3)
    assert "[stopped] after 3 turns" in "".join(written)


def test_lines_of_usage_and_results() -> None:
    """Cached tokens are input, too; a result shows 80 characters and counts its lines."""
    reply = assistant_message([text("x")], usage=Usage(1, 2, 4, 8))
    assert_same(usage_line([reply]), "[usage] 1 turn, 13 tokens in, 2 out")
    assert_same(usage_line([reply, reply]), "[usage] 2 turns, 26 tokens in, 4 out")
    for content, line in [
        ("", "[tool result] read: "),
        ("x" * 80, "[tool result] read: " + "x" * 80),
        ("x" * 81, "[tool result] read: " + "x" * 80 + "…"),
        ("a\nb\n", "[tool result] read: a (2 lines)"),
    ]:
        assert_same(result_line(ToolResultMessage("call-1", "read", (text(content),))), line)


def test_repl_hands_on_its_system_prompt_and_its_clock(project: Path) -> None:
    """The model reads the system prompt, and every message is stamped by the given clock."""
    model = ScriptedModel([[tool_call("call-1", "calc", {"expression": "1+1"})], "2"], clock=int)
    repl = Repl(model, tools(project), write=lambda _: None, clock=int)
    assert_same(repl.run(["go"]), True)
    assert_same([context.system_prompt for context in model.contexts], [SYSTEM_PROMPT] * 2)
    assert_same([message.timestamp for message in repl.messages], [0, 0, 0, 0])
    assert SYSTEM_PROMPT


@pytest.mark.parametrize(
    ("words", "paths"),
    [
        ("README.md", ["README.md"]),
        ("README.md and docs/a.txt", ["README.md", "docs/a.txt"]),
        ("README.md、notes.txt 和 x.py", ["README.md", "notes.txt", "x.py"]),
        ("the file README.md, please", ["README.md"]),
        ("Makefile", ["Makefile"]),
        ("`a.txt`?", ["a.txt"]),
    ],
)
def test_offline_paths(words: str, paths: list[str]) -> None:
    """The offline model finds the files in a sentence."""
    assert_same(paths_in(words), paths)


@pytest.mark.parametrize(
    ("words", "expression"),
    [
        ("what is 12*8", "12*8"),
        ("算一下 (1+2)**3 吧", "(1+2)**3"),
        ("12 × 8 = ?", "12 × 8"),
        ("I have 3 apples", None),
        ("no numbers", None),
        ("-5 + 3", "-5 + 3"),
        ("2^10", "2^10"),
    ],
)
def test_offline_arithmetic(words: str, expression: str | None) -> None:
    """The offline model finds the sum in a sentence."""
    assert_same(arithmetic_in(words), expression)


def test_offline_rules_stay_quick_on_a_long_line() -> None:
    """A pasted megabyte is no reason to hang."""
    begun = time.perf_counter()
    for line in ("9" * 500_000, "(" * 500_000, "1 " * 250_000, "read " * 100_000):
        arithmetic_in(line)
        paths_in(line)
    assert time.perf_counter() - begun < 5


def tools(project: Path) -> ToolRegistry:
    return ToolRegistry([calc_tool(), read_tool(project)])


def repl_output(project: Path, lines: list[str], model: Any = None) -> str:
    written: list[str] = []
    Repl(model or offline_model(delay=0.0), tools(project), write=written.append).run(lines)
    return "".join(written)
