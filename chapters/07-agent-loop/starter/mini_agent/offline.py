"""The offline model: a ScriptedModel with rules, so that the agent answers without a network.

It knows a greeting, arithmetic, reading files, and something long to interrupt. For
everything else it says what it knows.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial

from mini_agent.scripted_model import Rule, Said, ScriptedModel, on_tool_result, on_user, tool_call
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
    ToolCall,
    ToolResultMessage,
    now_ms,
    text,
    text_of,
    tool_calls,
)

DELAY = 0.02  # seconds before each piece: slow enough to see it stream

HELP = """\
I am the offline model: I follow a short script and need no network. Try one of these:
  what is 12*8
  read README.md
  tell me something long
"""

_ARITHMETIC = re.compile(r"[\d\s.+\-*/%()^×÷−]+")
_OPERATION = re.compile(r"[\d)]\s*[+\-*/%^×÷−]+\s*[\d(.]")
_BETWEEN_PATHS = re.compile(r"[\s,，、;]+|\band\b|和")


def offline_model(
    *,
    delay: float = DELAY,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], int] = now_ms,
) -> ScriptedModel:
    """The model that the REPL talks to when there is no other."""
    return ScriptedModel(rules=RULES, delay=delay, sleep=sleep, clock=clock)


def paths_in(words: str) -> list[str]:
    """The words that look like file names, or the first word if none does."""
    candidates = [word.strip("`'\"?!。") for word in _BETWEEN_PATHS.split(words)]
    candidates = [word for word in candidates if word]
    return [word for word in candidates if "." in word or "/" in word] or candidates[:1]


def arithmetic_in(words: str) -> str | None:
    """The first piece of `words` that is an operation on numbers."""
    for run in _ARITHMETIC.findall(words):
        if _OPERATION.search(run):
            return str(run).strip()
    return None


def _read(match: re.Match[str], context: AgentContext) -> Said:
    paths = paths_in(match["paths"])
    calls = [
        tool_call(f"call-{number}", "read", {"path": path})
        for number, path in enumerate(paths, start=_next_number(context))
    ]
    return [text(f"Reading {', '.join(paths)}."), *calls]


def _calculate(context: AgentContext) -> Said | None:
    last = context.messages[-1]
    expression = arithmetic_in(text_of(last)) if last.role == "user" else None
    if expression is None:
        return None
    call = tool_call(f"call-{_next_number(context)}", "calc", {"expression": expression})
    return [text("Let me calculate that."), call]


def _report(_: ToolResultMessage) -> Callable[[AgentContext], Said]:
    return lambda context: "\n".join(_outcome(call, result) for call, result in _answered(context))


def _outcome(call: ToolCall, result: ToolResultMessage) -> str:
    output = text_of(result)
    arguments = call.arguments or {}
    if result.is_error:
        return f"{call.name} did not work: {output}"
    if call.name == "calc":
        return f"{arguments.get('expression')} = {output}"
    lines = output.splitlines() or [""]
    noun = "line" if len(lines) == 1 else "lines"
    return f"{arguments.get('path')} has {len(lines)} {noun} and begins with: {lines[0]}"


def _answered(context: AgentContext) -> list[tuple[ToolCall, ToolResultMessage]]:
    """The calls of the last reply, each with its result."""
    messages = list(context.messages)
    results: list[ToolResultMessage] = []
    while messages and isinstance(last := messages[-1], ToolResultMessage):
        results.insert(0, last)
        messages.pop()
    reply = messages[-1] if messages else None
    calls = tool_calls(reply) if isinstance(reply, AssistantMessage) else ()
    return list(zip(calls, results, strict=False))


def _next_number(context: AgentContext) -> int:
    replies = (message for message in context.messages if isinstance(message, AssistantMessage))
    return 1 + sum(len(tool_calls(reply)) for reply in replies)


RULES: tuple[Rule, ...] = (
    on_tool_result(_report),
    on_user(r"(?i)(?:读取|\bread\b)\s*(?P<paths>\S.*)", lambda match: partial(_read, match)),
    _calculate,
    on_user(
        r"(?i)\blong\b|长",
        lambda _: "\n".join(f"{n}. One more line of a long answer." for n in range(1, 101)),
    ),
    on_user(r"(?i)\b(?:hello|hi|hey)\b|你好", lambda _: "Hello! What shall we do? `/help` helps."),
    on_user("", lambda _: HELP.rstrip()),
)
