"""Build one reply: the code that keeps the contract of `model.py` for every model.

A model brings a coroutine that fills a `Reply`. `reply_stream()` runs it, and turns its
end, whatever that is, into exactly one terminal event.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal

from mini_agent.abort import AbortError, AbortSignal
from mini_agent.event_stream import EventStream
from mini_agent.events import (
    DoneEvent,
    ErrorEvent,
    StartEvent,
    TextDeltaEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    final_message,
)
from mini_agent.model import ModelError, ModelStream
from mini_agent.types import (
    AssistantMessage,
    ContentBlock,
    StopReason,
    TextContent,
    ToolCall,
    Usage,
    now_ms,
)


class Reply:
    """One assistant message while it grows. Each change is told as one event.

    An index is a block's place in the content. Blocks stand in the order in which they were
    opened, whatever numbers a provider gives them.
    """

    def __init__(self, stream: ModelStream, *, provider: str, model: str, timestamp: int) -> None:
        self._stream = stream
        self._provider = provider
        self._model = model
        self._timestamp = timestamp
        self._content: list[ContentBlock] = []
        self._started = False
        self.usage = Usage()

    # Step 3.2: text, and a reply's end

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        """The content so far: a snapshot, since the blocks are frozen and the tuple is new."""
        raise NotImplementedError("step 3.2")

    async def start(self) -> None:
        """Tell that the reply has begun. Only the first call tells it."""
        raise NotImplementedError("step 3.2")

    async def open_text(self) -> int:
        """Add an empty text block and return its index. Its first delta will tell of it."""
        raise NotImplementedError("step 3.2")

    async def add_text(self, index: int, delta: str) -> None:
        """Append to the text block at `index`."""
        raise NotImplementedError("step 3.2")

    async def done(self, reason: Literal["stop", "length", "toolUse"]) -> None:
        """End the reply as complete."""
        raise NotImplementedError("step 3.2")

    def fail(self, reason: Literal["error", "aborted"], error_message: str) -> None:
        """End the reply with what had arrived. After an end this changes nothing."""
        raise NotImplementedError("step 3.2")

    # Step 3.3: tool calls

    async def open_tool_call(self, id: str = "", name: str = "") -> int:
        """Add a tool call without arguments and return its index.

        As with a text block, its first delta will tell of it.
        """
        raise NotImplementedError("step 3.3")

    def name_tool_call(self, index: int, id: str | None, name: str | None) -> None:
        """Fill in an id or a name that came late. What is set stays; an empty one sets nothing."""
        raise NotImplementedError("step 3.3")

    async def add_arguments(self, index: int, delta: str) -> None:
        """Append to the raw arguments of the tool call at `index`."""
        raise NotImplementedError("step 3.3")

    async def end_tool_call(self, index: int) -> None:
        """The raw arguments are complete: parse them and tell that the call is.

        Raises ModelError if they are not a JSON object. No text at all means no arguments.
        """
        raise NotImplementedError("step 3.3")

    # Given

    def _message(self, reason: StopReason, error_message: str | None) -> AssistantMessage:
        return AssistantMessage(
            content=self.content,
            stop_reason=reason,
            provider=self._provider,
            model=self._model,
            usage=self.usage,
            timestamp=self._timestamp,
            error_message=error_message,
        )


def reply_stream(
    answer: Callable[[Reply], Awaitable[None]],
    *,
    provider: str,
    model: str,
    signal: AbortSignal | None = None,
    clock: Callable[[], int] = now_ms,
) -> ModelStream:
    """A stream that runs `answer` on a new Reply and always ends in one terminal event.

    `answer` calls `reply.done()` at its end. If it raises or forgets to, the event is an
    `error` that keeps the content so far; its reason is "aborted" if the signal is aborted by
    then, or if AbortError was raised. A signal that is aborted from the start keeps `answer` from
    running at all.
    """
    raise NotImplementedError("step 3.4")


def parse_arguments(call: ToolCall) -> dict[str, Any]:
    """The call's raw arguments as a dict, {} where there is no text.

    Raises ModelError if the text is anything but one JSON object.
    """
    raise NotImplementedError("step 3.3")
