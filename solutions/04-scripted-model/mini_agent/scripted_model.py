"""A model that follows a script: offline, deterministic, and in every other way a model.

It keeps the whole contract of `model.py`, pieces, delays, aborts and failures included, so what
works on it works on a model behind a network.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, assert_never

from mini_agent.abort import AbortSignal, race
from mini_agent.model import ModelError, ModelStream, StreamOptions
from mini_agent.reply import Reply, reply_stream
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
    ContentBlock,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    assistant_message,
    now_ms,
    text,
    text_of,
)

# What a script may say: a text, blocks, a whole message, or a function that makes one of these.
Said: TypeAlias = str | Sequence[ContentBlock] | AssistantMessage
Factory: TypeAlias = Callable[[AgentContext], Said | Awaitable[Said]]
ScriptedReply: TypeAlias = Said | Factory

# A rule looks at the context and returns a reply, or None if the context is not its concern.
Rule: TypeAlias = Callable[[AgentContext], ScriptedReply | None]


class ScriptedModel:
    """A Model whose replies are written beforehand.

    The n-th call of `stream()` takes the n-th queued reply. When the queue is empty, the first
    rule that has a reply gives it; rules are never used up. With neither, the stream is one
    `error` event.

    Text and arguments are sent `chunk_size` characters at a time, and `sleep(delay)` is awaited
    before each piece. `clock` stamps the messages.
    """

    def __init__(
        self,
        replies: Iterable[ScriptedReply] = (),
        *,
        rules: Iterable[Rule] = (),
        chunk_size: int = 8,
        delay: float = 0.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], int] = now_ms,
        provider: str = "scripted",
        model: str = "scripted",
    ) -> None:
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")
        self._queue = deque(replies)
        self._rules = tuple(rules)
        self._chunk_size = chunk_size
        self._delay = delay
        self._sleep = sleep
        self._clock = clock
        self._provider = provider
        self._model = model
        self._contexts: list[AgentContext] = []

    @property
    def contexts(self) -> tuple[AgentContext, ...]:
        """The context of every call so far, in order: what the model was asked."""
        return tuple(self._contexts)

    @property
    def call_count(self) -> int:
        """How often `stream()` was called."""
        return len(self._contexts)

    @property
    def pending(self) -> int:
        """How many queued replies are left."""
        return len(self._queue)

    def enqueue(self, *replies: ScriptedReply) -> None:
        """Add replies at the end of the queue."""
        self._queue.extend(replies)

    def stream(self, context: AgentContext, options: StreamOptions | None = None) -> ModelStream:
        """Begin the next reply. It leaves the queue now, and is sent when the stream is read."""
        signal = (options.signal if options else None) or AbortSignal()  # one that nobody aborts
        self._contexts.append(context)
        queued = self._queue.popleft() if self._queue else None

        async def answer(reply: Reply) -> None:
            scripted = self._by_rule(context) if queued is None else queued
            message = await written_out(scripted, context, signal)
            try:
                await self._send(message.content, message.stop_reason == "toolUse", reply, signal)
            finally:  # a reply that is cut off has used tokens too
                reply.usage = estimate_usage(context, reply.content)
            match message.stop_reason:
                case "stop" | "length" | "toolUse":
                    await reply.done(message.stop_reason)
                case "error" | "aborted":
                    reply.fail(message.stop_reason, message.error_message or "the script fails")
                case _:
                    assert_never(message.stop_reason)

        return reply_stream(
            answer,
            provider=self._provider,
            model=self._model,
            signal=signal,
            clock=self._clock,
        )

    def _by_rule(self, context: AgentContext) -> ScriptedReply:
        for rule in self._rules:
            scripted = rule(context)
            if scripted is not None:
                return scripted
        if self._rules:
            raise ModelError("No scripted rule has a reply for this context")
        raise ModelError("No more scripted replies queued")

    async def _send(
        self, content: Iterable[ContentBlock], finished: bool, reply: Reply, signal: AbortSignal
    ) -> None:
        """Send the blocks in order, piece by piece.

        A call without `arguments` is cut off, as a provider's limit does it, and is not ended,
        unless the reply has `finished` all its calls.
        """
        for block in content:
            signal.raise_if_aborted()
            match block:
                case TextContent():
                    index = await reply.open_text()
                    for piece in self._pieces(block.text):
                        await self._wait(signal)
                        await reply.add_text(index, piece)
                case ToolCall():
                    index = await reply.open_tool_call(block.id, block.name)
                    for piece in self._pieces(arguments_json(block)):
                        await self._wait(signal)
                        await reply.add_arguments(index, piece)
                    if finished or block.arguments is not None:
                        await reply.end_tool_call(index)
                case _:
                    assert_never(block)

    def _pieces(self, whole: str) -> list[str]:
        size = self._chunk_size
        return [whole[start : start + size] for start in range(0, len(whole), size)]

    async def _wait(self, signal: AbortSignal) -> None:
        """What a network would take. An abort ends the wait, or is noticed right after it."""
        await race(self._sleep(self._delay), signal)
        signal.raise_if_aborted()


def tool_call(id: str, name: str, arguments: dict[str, Any]) -> ToolCall:
    """A complete tool call, with the JSON text that a provider would have sent for it."""
    return ToolCall(id, name, arguments, _compact_json(arguments))


def arguments_json(call: ToolCall) -> str:
    """The call's raw arguments; where there are none, compact JSON of its arguments."""
    if call.raw_arguments is not None:
        return call.raw_arguments
    return _compact_json(call.arguments or {})


def on_user(pattern: str, reply: Callable[[re.Match[str]], ScriptedReply]) -> Rule:
    """A rule for a user who spoke last and whose text has a match of `pattern`.

    `reply` is given the match.
    """

    def rule(context: AgentContext) -> ScriptedReply | None:
        last = context.messages[-1] if context.messages else None
        match = re.search(pattern, text_of(last)) if isinstance(last, UserMessage) else None
        return reply(match) if match else None

    return rule


def on_tool_result(reply: Callable[[ToolResultMessage], ScriptedReply]) -> Rule:
    """A rule for a context that ends in a tool result. `reply` is given that message."""

    def rule(context: AgentContext) -> ScriptedReply | None:
        last = context.messages[-1] if context.messages else None
        return reply(last) if isinstance(last, ToolResultMessage) else None

    return rule


async def written_out(
    scripted: ScriptedReply, context: AgentContext, signal: AbortSignal
) -> AssistantMessage:
    """The message that a scripted reply stands for. A factory runs here; an abort ends its wait."""
    if callable(scripted):
        made = scripted(context)
        scripted = await race(made, signal) if isinstance(made, Awaitable) else made
    if isinstance(scripted, AssistantMessage):
        return scripted
    blocks = (text(scripted),) if isinstance(scripted, str) else tuple(scripted)
    has_calls = any(isinstance(block, ToolCall) for block in blocks)
    return assistant_message(blocks, "toolUse" if has_calls else "stop")


def estimate_usage(context: AgentContext, content: Iterable[ContentBlock]) -> Usage:
    """A token for every four characters begun: no tokenizer's count, but the same on every run."""
    prompt = len(context.system_prompt or "")
    prompt += sum(_characters(message.content) for message in context.messages)
    return Usage(input=-(-prompt // 4), output=-(-_characters(content) // 4))


def _compact_json(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _characters(content: Iterable[ContentBlock]) -> int:
    return sum(
        len(block.text if isinstance(block, TextContent) else arguments_json(block))
        for block in content
    )
