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
        raise NotImplementedError("step 4.1")


def tool_call(id: str, name: str, arguments: dict[str, Any]) -> ToolCall:
    """A complete tool call, with the JSON text that a provider would have sent for it."""
    raise NotImplementedError("step 4.2")


def arguments_json(call: ToolCall) -> str:
    """The call's raw arguments; where there are none, compact JSON of its arguments."""
    raise NotImplementedError("step 4.2")


def on_user(pattern: str, reply: Callable[[re.Match[str]], ScriptedReply]) -> Rule:
    """A rule for a user who spoke last and whose text has a match of `pattern`.

    `reply` is given the match.
    """
    raise NotImplementedError("step 4.5")


def on_tool_result(reply: Callable[[ToolResultMessage], ScriptedReply]) -> Rule:
    """A rule for a context that ends in a tool result. `reply` is given that message."""
    raise NotImplementedError("step 4.5")


async def written_out(
    scripted: ScriptedReply, context: AgentContext, signal: AbortSignal
) -> AssistantMessage:
    """The message that a scripted reply stands for. A factory runs here; an abort ends its wait."""
    raise NotImplementedError("step 4.1")


def estimate_usage(context: AgentContext, content: Iterable[ContentBlock]) -> Usage:
    """A token for every four characters begun: no tokenizer's count, but the same on every run."""
    raise NotImplementedError("step 4.2")
