"""Talk to the agent in a terminal, or through a pipe: `echo 'what is 12*8' | python -m mini_agent`.

`Repl` is the whole conversation and touches no terminal: lines come in, text goes out.
`main()` wires it to a model, the tools, and the world.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mini_agent.agent_events import AgentEvent
from mini_agent.agent_loop import MAX_TURNS
from mini_agent.events import DoneEvent, ErrorEvent, ModelEvent
from mini_agent.model import Model
from mini_agent.offline import DELAY, offline_model
from mini_agent.render import Renderer
from mini_agent.tools import ToolRegistry, calc_tool, read_tool
from mini_agent.types import (
    AgentMessage,
    AssistantMessage,
    ToolResultMessage,
    now_ms,
    text_of,
)

SYSTEM_PROMPT = "You are an assistant with tools. Use `calc` for arithmetic and `read` for files."
PROMPT = "you> "
SHOWN = 80  # characters of a tool result

Write = Callable[[str], object]


class Repl:
    """A conversation: each line is a command, or a prompt on which the agent runs."""

    def __init__(
        self,
        model: Model,
        tools: ToolRegistry,
        *,
        write: Write,
        clock: Callable[[], int] = now_ms,
        max_turns: int = MAX_TURNS,
    ) -> None:
        self.messages: list[AgentMessage] = []
        self._model = model
        self._tools = tools
        self._write = write
        self._clock = clock
        self._max_turns = max_turns
        self._renderer = Renderer()
        # Each command is given what stands after its name, and returns whether the REPL goes on.
        self._commands: dict[str, tuple[str, Callable[[str], bool]]] = {
            "/help": ("show this", self._help),
            "/exit": ("leave; Ctrl+D does it, too", lambda _: False),
        }

    def run(self, lines: Iterable[str]) -> bool:
        """Take the lines until the end or `/exit`. Returns whether all prompts went well."""
        raise NotImplementedError("step 7.4")

    async def ask(self, prompt: str) -> bool:
        """Run the agent on one prompt and show what it does. Returns whether it came to its end."""
        raise NotImplementedError("step 7.4")

    def _take(self, event: AgentEvent) -> None:
        """Keep what belongs to the conversation, and show what the user should see."""
        raise NotImplementedError("step 7.4")

    def _command(self, words: str) -> bool:
        """Do what the command line says. Returns whether the REPL goes on."""
        raise NotImplementedError("step 7.4")

    def _help(self, _: str) -> bool:
        for name, (description, _action) in self._commands.items():
            self._write(f"{name:10} {description}\n")
        return True


def result_line(message: ToolResultMessage) -> str:
    """A tool result on one line: its first line, and how many there are."""
    label = "[tool error]" if message.is_error else "[tool result]"
    first, *rest = text_of(message).splitlines() or [""]
    shown = first if len(first) <= SHOWN else f"{first[:SHOWN]}…"
    return f"{label} {message.tool_name}: {shown}" + (f" ({1 + len(rest)} lines)" if rest else "")


def usage_line(messages: Iterable[AgentMessage]) -> str:
    """What a run cost: its replies and their tokens, with cached input counted as input."""
    usages = [message.usage for message in messages if isinstance(message, AssistantMessage)]
    tokens_in = sum(usage.input + usage.cache_read + usage.cache_write for usage in usages)
    tokens_out = sum(usage.output for usage in usages)
    turns = "1 turn" if len(usages) == 1 else f"{len(usages)} turns"
    return f"[usage] {turns}, {tokens_in} tokens in, {tokens_out} out"


def _terminal_event(message: AssistantMessage) -> ModelEvent:
    match message.stop_reason:
        case "error" | "aborted" as reason:
            return ErrorEvent(reason, message)
        case reason:
            return DoneEvent(reason, message)


def terminal_lines(prompt: str, write: Write) -> Iterator[str]:
    """What the user types, line by line, until Ctrl+D, or Ctrl+C at the prompt."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # with it, `input()` has a history and editing
    while True:
        try:
            line = input(prompt)
        except (EOFError, KeyboardInterrupt):
            write("\n")
            return
        yield line


def write_out(text: str) -> None:
    """Show text at once, a half line too."""
    sys.stdout.write(text)
    sys.stdout.flush()


def main() -> int:
    """The program. Returns its exit code: 1 if a prompt from a pipe failed, 130 after Ctrl+C."""
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    at_terminal = sys.stdin.isatty()

    model = offline_model(delay=DELAY if at_terminal else 0.0)
    tools = ToolRegistry([calc_tool(), read_tool(Path.cwd())])
    repl = Repl(model, tools, write=write_out)
    try:
        if not at_terminal:
            return 0 if repl.run(sys.stdin) else 1
        write_out("model: scripted, offline\n/help lists the commands, Ctrl+D leaves.\n")
        repl.run(terminal_lines(PROMPT, write_out))
        return 0
    except KeyboardInterrupt:
        write_out("\n")
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone. Without this, Python complains once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
