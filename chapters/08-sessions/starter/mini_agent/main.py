"""Talk to the agent in a terminal, or through a pipe: `echo 'what is 12*8' | python -m mini_agent`.

`Repl` is the whole conversation and touches no terminal: lines come in, text goes out.
`main()` wires it to a model, the tools, and the world. A conversation is saved while it is held.
"""

import argparse
import asyncio
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mini_agent.agent_events import (
    AgentEndEvent,
    AgentEvent,
    MessageEndEvent,
    MessageUpdateEvent,
)
from mini_agent.agent_loop import MAX_TURNS, run_agent
from mini_agent.events import DoneEvent, ErrorEvent, ModelEvent
from mini_agent.model import Model
from mini_agent.offline import DELAY, offline_model
from mini_agent.render import Renderer
from mini_agent.session import Session, list_sessions
from mini_agent.session_lines import SessionError
from mini_agent.tools import ToolRegistry, calc_tool, read_tool
from mini_agent.types import (
    AgentContext,
    AgentMessage,
    AssistantMessage,
    ToolResultMessage,
    now_ms,
    text_of,
    user_message,
)

SYSTEM_PROMPT = "You are an assistant with tools. Use `calc` for arithmetic and `read` for files."
PROMPT = "you> "
SHOWN = 80  # characters of a tool result
LISTED = 20  # sessions in a list
NO_RESULT = "No result: the session ended before this tool answered."

Write = Callable[[str], object]


class Repl:
    """A conversation: each line is a command, or a prompt on which the agent runs.

    With a `session_dir` each message is saved there as soon as it is complete. Without one
    nothing is saved.
    """

    def __init__(
        self,
        model: Model,
        tools: ToolRegistry,
        *,
        write: Write,
        clock: Callable[[], int] = now_ms,
        max_turns: int = MAX_TURNS,
        session_dir: Path | None = None,
    ) -> None:
        self.messages: list[AgentMessage] = []
        self._model = model
        self._tools = tools
        self._write = write
        self._clock = clock
        self._max_turns = max_turns
        self._session_dir = session_dir
        self.session = Session.create(session_dir, os.getcwd()) if session_dir else None
        self._renderer = Renderer()
        # Each command is given what stands after its name, and returns whether the REPL goes on.
        self._commands: dict[str, tuple[str, Callable[[str], bool]]] = {
            "/help": ("show this", self._help),
            "/sessions": ("list the saved conversations", self._list_sessions),
            "/resume": ("go on with one of them: /resume and the end of its id", self._resume),
            "/exit": ("leave; Ctrl+D does it, too", lambda _: False),
        }

    def run(self, lines: Iterable[str]) -> bool:
        """Take the lines until the end or `/exit`. Returns whether all prompts went well."""
        all_well = True
        with asyncio.Runner() as runner:
            for line in lines:
                words = line.strip()
                if words.startswith("/"):
                    if not self._command(words):
                        break
                elif words:
                    all_well &= runner.run(self.ask(words))
        return all_well

    async def ask(self, prompt: str) -> bool:
        """Run the agent on one prompt and show what it does. Returns whether it came to its end."""
        stream = run_agent(
            user_message(prompt, self._clock()),
            AgentContext(tuple(self.messages), SYSTEM_PROMPT),
            self._model,
            self._tools,
            max_turns=self._max_turns,
            clock=self._clock,
        )
        async with stream:
            async for event in stream:
                self._take(event)
            return (await stream.result()).reason == "done"

    def resume(self, wanted: str) -> None:
        """Go on with the session whose id is `wanted` or ends with it.

        Raises SessionError if that can't be; the conversation then stays the one that it is.
        """
        raise NotImplementedError("step 8.4")

    def close(self) -> None:
        """Let go of the session. What was said in it is saved already."""
        if self.session is not None:
            self.session.close()

    def _keep(self, message: AgentMessage) -> None:
        """Take a message into the conversation, and save it."""
        self.messages.append(message)
        # Step 8.4: save it.

    def _list_sessions(self, _: str) -> bool:
        infos = list_sessions(self._session_dir) if self._session_dir else ()
        for info in infos[:LISTED]:
            self._notice(f"{info.id}  {info.problem or info.title[:SHOWN]}")
        if len(infos) > LISTED:
            self._notice(f"and {len(infos) - LISTED} older ones")
        if not infos:
            self._notice("no conversation is saved here")
        return True

    def _resume(self, wanted: str) -> bool:
        if not wanted:
            self._notice("say which: /resume and the end of its id; /sessions lists them")
            return True
        try:
            self.resume(wanted)
        except SessionError as error:
            self._notice(f"[not resumed] {error}")
        return True

    def _notice(self, text: str) -> None:
        self._write(self._renderer.notice(text))

    def _take(self, event: AgentEvent) -> None:
        """Keep what belongs to the conversation, and show what the user should see."""
        match event:
            case MessageUpdateEvent(event=model_event):
                self._write(self._renderer.render(model_event))
            case MessageEndEvent(message=message):
                self._keep(message)
                if isinstance(message, AssistantMessage):
                    self._write(self._renderer.render(_terminal_event(message)))
                elif isinstance(message, ToolResultMessage):
                    self._write(self._renderer.notice(result_line(message)))
            case AgentEndEvent(reason=reason, messages=messages):
                if reason == "turnLimit":
                    self._write(self._renderer.notice(f"[stopped] after {self._max_turns} turns"))
                self._write(self._renderer.notice(usage_line(messages)))
            case _:
                pass

    def _command(self, words: str) -> bool:
        name, _, rest = words.partition(" ")
        if name not in self._commands:
            self._write(self._renderer.notice(f"{name} is no command; /help lists them"))
            return True
        _, action = self._commands[name]
        return action(rest.strip())

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


def session_directory(named: str | None, env: Mapping[str, str], *, default: bool) -> Path | None:
    """Where sessions are kept: as named, or as MINI_AGENT_SESSIONS says.

    With neither, in the user's home if there is to be a `default`, else nowhere.
    """
    chosen = named or env.get("MINI_AGENT_SESSIONS")
    if chosen:
        return Path(chosen)
    return Path.home() / ".mini-agent" / "sessions" if default else None


def options_of(argv: Sequence[str]) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m mini_agent", description="Talk to the agent.")
    parser.add_argument("--session-dir", metavar="DIR", help="where conversations are saved")
    parser.add_argument("--resume", metavar="ID", help="go on with this one; its last part will do")
    return parser.parse_args(argv)


def write_out(text: str) -> None:
    """Show text at once, a half line too."""
    sys.stdout.write(text)
    sys.stdout.flush()


def main(argv: Sequence[str] = ()) -> int:
    """The program. Returns its exit code: 1 if a prompt from a pipe failed, 130 after Ctrl+C.

    At a terminal a conversation is always saved; from a pipe, if it is said where.
    """
    options = options_of(argv)
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    at_terminal = sys.stdin.isatty()

    model = offline_model(delay=DELAY if at_terminal else 0.0)
    tools = ToolRegistry([calc_tool(), read_tool(Path.cwd())])
    session_dir = session_directory(
        options.session_dir, os.environ, default=at_terminal or options.resume is not None
    )
    repl = Repl(model, tools, write=write_out, session_dir=session_dir)
    try:
        if options.resume:
            repl.resume(options.resume)
        if not at_terminal:
            return 0 if repl.run(sys.stdin) else 1
        write_out("model: scripted, offline\n/help lists the commands, Ctrl+D leaves.\n")
        repl.run(terminal_lines(PROMPT, write_out))
        if repl.session and repl.session.messages:
            name = repl.session.header.id
            write_out(f"[saved] {name}; start with `--resume {name[-8:]}` to go on\n")
        return 0
    except SessionError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        write_out("\n")
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone. Without this, Python complains once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        repl.close()
