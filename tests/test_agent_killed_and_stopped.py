"""The agent as a process: killed with SIGKILL, and stopped with Ctrl+C at a real terminal."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grader.checkpoint import compose_target
from grader.course import load_course

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals and no SIGKILL here", allow_module_level=True)

import pty

ROOT = Path(__file__).parents[1]
PROGRAM = (sys.executable, "-m", "mini_agent")
PATIENCE = 60.0  # seconds; only a failing test takes so long

# Appends numbered messages, and prints each number once append() has returned.
WRITER = """
import sys
from pathlib import Path
from mini_agent.session import Session
from mini_agent.types import user_message
session = Session.create(Path(sys.argv[1]), "/")
number = 0
while True:
    session.append(user_message(f"读取 {number} " + "x" * (number % 5000), number))
    print(number, flush=True)
    number += 1
"""

READER = """
import json, sys
from pathlib import Path
from mini_agent.session import Session
with Session.resume(Path(sys.argv[1])) as session:
    print(json.dumps([[message.timestamp for message in session.messages], session.repair]))
"""

STUCK = """
import time
from mini_agent.extensions import Extension
extension = Extension("stuck")
@extension.before_tool
def wait(call):
    print("waiting", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chapter 09's target, composed."""
    directory = tmp_path_factory.mktemp("agent")
    course = load_course(ROOT)
    compose_target(course, course.chapter("09"), directory)
    return directory


def environment(agent: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(agent),
        "PYTHONPATH": str(agent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        "TERM": "dumb",
    }


def resumed(agent: Path, path: Path) -> tuple[list[int], str | None]:
    """The messages' numbers and the repair, from another process."""
    result = subprocess.run(
        [sys.executable, "-c", READER, str(path)],
        env=environment(agent),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    numbers, repair = json.loads(result.stdout)
    return numbers, repair


def test_what_was_acknowledged_survives_a_kill(agent: Path, tmp_path: Path) -> None:
    """SIGKILL between any two instructions: every message that append() returned from is there."""
    for round_number in range(6):
        directory = tmp_path / str(round_number)
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)],
            env=environment(agent),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        with writer:
            for _ in range(3 + round_number * 7):
                writer.stdout.readline()
            writer.kill()
            rest = writer.stdout.read().split()
        acknowledged = int(rest[-1]) if rest else 2 + round_number * 7
        (path,) = directory.iterdir()
        # Its lock went with the process, so the session opens at once.
        numbers, _ = resumed(agent, path)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > acknowledged


def test_a_running_writer_keeps_others_out(agent: Path, tmp_path: Path) -> None:
    """While one process holds a session, another is refused; after a kill it is not."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        env=environment(agent),
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.send_signal(signal.SIGSTOP)  # it holds the lock, and writes no more
        (path,) = tmp_path.iterdir()
        before = path.read_bytes()
        refused = subprocess.run(
            [*PROGRAM, "--session-dir", str(tmp_path), "--resume", path.stem],
            env=environment(agent),
            input="hello\n",
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (refused.returncode, path.read_bytes()) == (2, before)
        assert "open already" in refused.stderr
        writer.kill()
        writer.wait()
    numbers, _ = resumed(agent, path)
    assert numbers[0] == 0


class Terminal:
    """The agent at a pseudo-terminal: what a person types, and what they see."""

    def __init__(self, agent: Path, *arguments: str) -> None:
        self._agent = agent
        self._arguments = arguments
        self.seen = ""
        self.pid = 0

    def __enter__(self) -> "Terminal":
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:  # the child
            os.chdir(self._agent)
            os.execve(sys.executable, [*PROGRAM, *self._arguments], environment(self._agent))
        self._code: int | None = None
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._terminal)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str, *, pressing: str = "") -> None:
        """Read until `text` is seen behind what was waited for before.

        `pressing` is typed at once, and again every two seconds: a Ctrl+C between the prompt and
        the moment at which `input()` listens is noticed only at the next key. That is a gap in
        CPython's readline, in which a person presses it again.
        """
        deadline = time.monotonic() + PATIENCE
        press_at = time.monotonic() if pressing else deadline
        while text not in self.seen:
            assert time.monotonic() < deadline, f"waited for {text!r}, saw {self.seen!r}"
            if time.monotonic() >= press_at:
                self.type(pressing)
                press_at += 2
            if select.select([self._terminal], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._terminal, 65536).decode(errors="replace")
                except OSError:  # Linux: the child closed its side
                    assert text in self.seen, f"waited for {text!r}, saw {self.seen!r}"
        self.seen = self.seen.partition(text)[2]

    def exit_code(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        deadline = time.monotonic() + PATIENCE
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
                return self._code
            assert time.monotonic() < deadline, f"the program goes on; it said {self.seen!r}"
            if select.select([self._terminal], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self._terminal, 65536).decode(errors="replace")


def messages_in(directory: Path) -> Iterator[dict[str, object]]:
    (path,) = directory.iterdir()
    for line in path.read_text(encoding="utf-8").split("\n")[1:-1]:
        yield json.loads(line)


def test_ctrl_c_stops_the_turn_and_the_prompt_comes_back(agent: Path, tmp_path: Path) -> None:
    """Ctrl+C in a turn stops it; the next prompt is answered; Ctrl+C at the prompt leaves."""
    with Terminal(agent, "--session-dir", str(tmp_path)) as terminal:
        terminal.wait_for("you> ")
        terminal.type("tell me something long\n")
        terminal.wait_for("3. One more line")
        terminal.type("\x03")
        terminal.wait_for("[aborted]")
        terminal.wait_for("you> ")
        terminal.type("what is 12*8\n")
        terminal.wait_for("12*8 = 96")
        terminal.wait_for("you> ")
        terminal.wait_for("start with `--resume ", pressing="\x03")
        assert terminal.exit_code() == 0
        assert "Traceback" not in terminal.seen

    said = [(each["role"], each.get("stop_reason")) for each in messages_in(tmp_path)]
    assert said == [
        ("user", None),
        ("assistant", "aborted"),
        ("user", None),
        ("assistant", "toolUse"),
        ("toolResult", None),
        ("assistant", "stop"),
    ]


def test_a_killed_turn_is_answered_at_resume(agent: Path, tmp_path: Path) -> None:
    """SIGKILL while a call waits; /resume answers the call, and the conversation goes on."""
    extension = tmp_path / "stuck.py"
    extension.write_text(STUCK, encoding="utf-8")
    saved = tmp_path / "saved"
    with Terminal(agent, "--session-dir", str(saved), "--extension", str(extension)) as terminal:
        terminal.wait_for("you> ")
        terminal.type("what is 12*8\n")
        terminal.wait_for("waiting")
        os.kill(terminal.pid, signal.SIGKILL)
        assert terminal.exit_code() == -signal.SIGKILL

    (path,) = saved.iterdir()
    with Terminal(agent, "--session-dir", str(saved)) as terminal:
        terminal.wait_for("you> ")
        terminal.type(f"/resume {path.stem[-8:]}\n")
        terminal.wait_for("3 messages")
        terminal.wait_for("you> ")
        terminal.type("what is 3+4\n")
        terminal.wait_for("3+4 = 7")
        terminal.wait_for("you> ")
        terminal.type("\x04")
        assert terminal.exit_code() == 0

    said = " ".join(str(each["role"]) for each in messages_in(saved))
    assert said == "user assistant toolResult user assistant toolResult assistant"


def test_a_second_ctrl_c_leaves_what_is_stuck(agent: Path, tmp_path: Path) -> None:
    """Code that blocks the whole program is left at the second Ctrl+C, with exit code 130."""
    extension = tmp_path / "stuck.py"
    extension.write_text(STUCK, encoding="utf-8")
    saved = tmp_path / "saved"
    with Terminal(agent, "--session-dir", str(saved), "--extension", str(extension)) as terminal:
        terminal.wait_for("you> ")
        terminal.type("what is 12*8\n")
        terminal.wait_for("waiting")
        terminal.type("\x03")
        time.sleep(0.3)  # a terminal may fold two that come at once into one
        terminal.type("\x03")
        assert terminal.exit_code() == 130
        assert "Traceback" not in terminal.seen
    assert [each["role"] for each in messages_in(saved)] == ["user", "assistant"]


def test_ctrl_c_ends_a_pipe_with_130(agent: Path, tmp_path: Path) -> None:
    """Without a terminal there is no prompt to come back to: SIGINT stops the turn and leaves."""
    extension = tmp_path / "press.py"
    extension.write_text(
        "import asyncio, os, signal\n"
        "from mini_agent.extensions import Extension\n"
        "extension = Extension('press')\n"
        "@extension.before_tool\n"
        "async def press(call):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    await asyncio.sleep(600)\n",
        encoding="utf-8",
    )
    saved = tmp_path / "saved"
    result = subprocess.run(
        [*PROGRAM, "--session-dir", str(saved), "--extension", str(extension)],
        env=environment(agent),
        input="what is 12*8\nwhat is 1+1\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (result.returncode, result.stderr) == (130, "")
    assert "Operation aborted" in result.stdout
    assert [each["role"] for each in messages_in(saved)] == ["user", "assistant", "toolResult"]
