"""Build one reply: the code that keeps the contract of `model.py` for every model.

A model brings a coroutine that fills a `Reply`. `reply_stream()` runs it, and turns its
end, whatever that is, into exactly one terminal event.
"""

import json
import math
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

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        """The content so far: a snapshot, since the blocks are frozen and the tuple is new."""
        return tuple(self._content)

    async def start(self) -> None:
        """Tell that the reply has begun. Only the first call tells it."""
        if not self._started:
            self._started = True
            await self._stream.send(StartEvent(self.content))

    async def open_text(self) -> int:
        """Add an empty text block and return its index. Its first delta will tell of it."""
        return await self._open(TextContent(""))

    async def open_tool_call(self, id: str = "", name: str = "") -> int:
        """Add a tool call without arguments and return its index.

        As with a text block, its first delta will tell of it.
        """
        return await self._open(ToolCall(id, name, raw_arguments=""))

    async def add_text(self, index: int, delta: str) -> None:
        """Append to the text block at `index`."""
        block = self._content[index]
        assert isinstance(block, TextContent), f"content[{index}] is not a text block"
        self._content[index] = TextContent(block.text + delta)
        await self._stream.send(TextDeltaEvent(index, delta, self.content))

    def name_tool_call(self, index: int, id: str | None, name: str | None) -> None:
        """Fill in an id or a name that came late. What is set stays; an empty one sets nothing."""
        call = self._tool_call(index)
        self._content[index] = replace(call, id=call.id or id or "", name=call.name or name or "")

    async def add_arguments(self, index: int, delta: str) -> None:
        """Append to the raw arguments of the tool call at `index`."""
        call = self._tool_call(index)
        self._content[index] = replace(call, raw_arguments=(call.raw_arguments or "") + delta)
        await self._stream.send(ToolCallDeltaEvent(index, delta, self.content))

    async def end_tool_call(self, index: int) -> None:
        """The raw arguments are complete: parse them and tell that the call is.

        Raises ModelError if they are not a JSON object. No text at all means no arguments.
        """
        call = self._tool_call(index)
        call = replace(call, arguments=parse_arguments(call))
        self._content[index] = call
        await self._stream.send(ToolCallEndEvent(index, call, self.content))

    async def done(self, reason: Literal["stop", "length", "toolUse"]) -> None:
        """End the reply as complete."""
        await self.start()
        self._stream.push(DoneEvent(reason, self._message(reason, None)))

    def fail(self, reason: Literal["error", "aborted"], error_message: str) -> None:
        """End the reply with what had arrived. After an end this changes nothing."""
        self._stream.push(ErrorEvent(reason, self._message(reason, error_message)))

    async def _open(self, block: ContentBlock) -> int:
        await self.start()
        self._content.append(block)
        return len(self._content) - 1

    def _tool_call(self, index: int) -> ToolCall:
        block = self._content[index]
        assert isinstance(block, ToolCall), f"content[{index}] is not a tool call"
        return block

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

    async def produce(stream: ModelStream) -> None:
        reply = Reply(stream, provider=provider, model=model, timestamp=clock())
        failure: Exception = ModelError("the model ended without finishing its reply")
        try:
            if signal is not None:
                signal.raise_if_aborted()
            await answer(reply)
        except Exception as error:
            failure = error
        aborted = isinstance(failure, AbortError) or (signal is not None and signal.aborted)
        # After a `done` this says nothing: a stream has one terminal event.
        reply.fail("aborted" if aborted else "error", str(failure) or type(failure).__name__)

    return EventStream(final_message, produce)


def parse_arguments(call: ToolCall) -> dict[str, Any]:
    """The call's raw arguments as a dict, {} where there is no text.

    Raises ModelError if the text is anything but one JSON object.
    """
    raw = call.raw_arguments or ""
    if not raw.strip():
        return {}
    try:
        arguments = json.loads(raw, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):  # the second: a hostile text of a thousand brackets
        arguments = None
    if not isinstance(arguments, dict):
        raise ModelError(
            f"Tool call {call.id} ({call.name}): arguments are not a JSON object: {raw}"
        )
    return arguments


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")  # json.loads would take NaN and Infinity


def _finite(number: str) -> float:
    """`1e999` is JSON, but to Python it is infinity, which no JSON can say again."""
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number} is too large")
    return value
