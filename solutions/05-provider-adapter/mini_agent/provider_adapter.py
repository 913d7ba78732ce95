"""Between the agent's messages and a provider's: what both sides of the network agree on.

Outward, pure functions write a context as wire messages. Inward, a transport yields three kinds
of `ProviderChunk`, and `ProviderModel` builds a reply from them. Neither side sees the
other's state, so each can be read, and tested, without the network.
"""

import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, assert_never

from mini_agent.abort import AbortSignal, race
from mini_agent.model import ModelError, ModelStream, StreamOptions
from mini_agent.reply import Reply, reply_stream
from mini_agent.types import (
    AgentContext,
    AgentMessage,
    AssistantMessage,
    ToolCall,
    ToolDefinition,
    ToolResultMessage,
    Usage,
    UserMessage,
    now_ms,
    text_of,
    tool_calls,
)

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One request, in the provider's words but for how it travels."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of text."""

    delta: str


@dataclass(frozen=True, slots=True)
class ToolChunk:
    """A piece of a tool call. `index` is the provider's number for it, None where it gives none."""

    index: int | None
    id: str | None = None
    name: str | None = None
    arguments_delta: str | None = None


@dataclass(frozen=True, slots=True)
class FinishChunk:
    """Why the provider stopped, and what it counted. A stream yields it once, last.

    A stream that ends without a reason was cut off, even where the counts came.
    """

    reason: FinishReason | None
    usage: Usage | None = None


ProviderChunk: TypeAlias = TextChunk | ToolChunk | FinishChunk


class ProviderTransport(Protocol):
    """Carries one request to a provider and yields what comes back. Failures are raised."""

    def stream(
        self, request: ProviderRequest, signal: AbortSignal | None = None
    ) -> AsyncIterator[ProviderChunk]: ...


# Outward


def to_provider_messages(context: AgentContext) -> list[dict[str, Any]]:
    """The context as wire messages, the system prompt first. The context stays as it is."""
    wire: list[dict[str, Any]] = []
    if context.system_prompt:
        wire.append({"role": "system", "content": context.system_prompt})
    for message in context.messages:
        wire.extend(_to_wire(message))
    return wire


def to_provider_tools(tools: Iterable[ToolDefinition]) -> list[dict[str, Any]] | None:
    """The tools as wire tools; None where there are none, since an empty list is refused."""
    wire = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": copy.deepcopy(tool.parameters),
            },
        }
        for tool in tools
    ]
    return wire or None


def _to_wire(message: AgentMessage) -> list[dict[str, Any]]:
    """No message or one: a reply that failed before its first piece has nothing to send."""
    match message:
        case UserMessage():
            return [{"role": "user", "content": text_of(message)}]
        case ToolResultMessage():
            return [
                {
                    "role": "tool",
                    "tool_call_id": message.tool_call_id,
                    "name": message.tool_name,
                    "content": "\n".join(block.text for block in message.content),
                }
            ]
        case AssistantMessage():
            calls = tool_calls(message)
            wire: dict[str, Any] = {"role": "assistant", "content": text_of(message) or None}
            if calls:
                wire["tool_calls"] = [_call_to_wire(call) for call in calls]
            return [wire] if calls or wire["content"] else []
        case _:
            assert_never(message)


def _call_to_wire(call: ToolCall) -> dict[str, Any]:
    """The raw arguments go back as they came: parsing and writing again could change them."""
    arguments = call.raw_arguments or json.dumps(
        call.arguments or {}, ensure_ascii=False, separators=(",", ":")
    )
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


# Inward


class ProviderModel:
    """A model behind a transport. All state of one reply lives in its `stream()` call."""

    def __init__(
        self,
        transport: ProviderTransport,
        *,
        provider: str,
        model: str,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._transport = transport
        self._provider = provider
        self._model = model
        self._clock = clock

    def stream(self, context: AgentContext, options: StreamOptions | None = None) -> ModelStream:
        """Send the context and tell what comes back, as `Model` promises."""
        signal = options.signal if options else None

        async def answer(reply: Reply) -> None:
            request = ProviderRequest(
                self._model, to_provider_messages(context), to_provider_tools(context.tools)
            )
            await _fill(reply, self._transport.stream(request, signal), signal)

        return reply_stream(
            answer,
            provider=self._provider,
            model=self._model,
            signal=signal,
            clock=self._clock,
        )


async def _fill(
    reply: Reply, chunks: AsyncIterator[ProviderChunk], signal: AbortSignal | None
) -> None:
    """Build `reply` from `chunks`, and close them on every way out."""
    text_index: int | None = None
    calls = _OpenCalls()
    finish: FinishChunk | None = None
    try:
        # Each step is raced, so that a transport that forgets its signal still can't hold Ctrl+C.
        while (chunk := await race(anext(chunks, None), signal)) is not None:
            match chunk:
                case TextChunk(delta):
                    if not delta:
                        continue
                    if text_index is None:
                        text_index = await reply.open_text()
                    await reply.add_text(text_index, delta)
                case ToolChunk():
                    call = calls.find(chunk)
                    if call is None:
                        call = calls.add(await reply.open_tool_call())
                    calls.note(call, chunk)
                    reply.name_tool_call(call.content_index, chunk.id, chunk.name)
                    if chunk.arguments_delta is not None:
                        await reply.add_arguments(call.content_index, chunk.arguments_delta)
                case FinishChunk():
                    finish = chunk
                case _:
                    assert_never(chunk)
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()

    if finish is not None and finish.usage is not None:
        reply.usage = finish.usage  # first of all: a failed reply was paid for too
    if finish is None or finish.reason is None:
        raise ModelError("The stream ended without a finish_reason: the reply was cut off")
    if finish.reason == "length":
        await reply.done("length")  # cut off by the limit: the raw arguments stay unparsed
        return
    for call in calls.in_order:
        call.require_id_and_name()
        await reply.end_tool_call(call.content_index)
    # Some servers say "stop" after complete calls; the calls are what counts.
    await reply.done("toolUse" if calls.in_order or finish.reason == "tool_calls" else "stop")


@dataclass(slots=True)
class _OpenCall:
    """A tool call under way: where it stands in the content, and what names it so far."""

    content_index: int
    id: str = ""
    name: str = ""

    def require_id_and_name(self) -> None:
        for field in ("id", "name"):
            if not getattr(self, field):
                raise ModelError(
                    f"Tool call in content[{self.content_index}]: the provider gave no {field}"
                )


class _OpenCalls:
    """Finds the call that a chunk belongs to.

    The provider's index is the key, but not every provider keeps to it: some leave it out, and
    some use one index for two calls with different ids. Two ids are never one call.
    """

    def __init__(self) -> None:
        self.in_order: list[_OpenCall] = []
        self._by_index: dict[int, _OpenCall] = {}
        self._by_id: dict[tuple[int | None, str], _OpenCall] = {}

    def find(self, chunk: ToolChunk) -> _OpenCall | None:
        """The open call that `chunk` continues, or None if it begins one."""
        if chunk.id and (known := self._by_id.get((chunk.index, chunk.id))):
            return known
        if chunk.index is None:
            call = self.in_order[-1] if self.in_order else None
        else:
            call = self._by_index.get(chunk.index)
        return None if call and call.id and chunk.id else call

    def add(self, content_index: int) -> _OpenCall:
        """A new call in this slot of the content, the place that it keeps."""
        call = _OpenCall(content_index)
        self.in_order.append(call)
        return call

    def note(self, call: _OpenCall, chunk: ToolChunk) -> None:
        """Remember what leads to `call`. The first id and the first name stay."""
        call.id = call.id or chunk.id or ""
        call.name = call.name or chunk.name or ""
        if chunk.id:
            self._by_id[chunk.index, chunk.id] = call
        if chunk.index is not None:
            self._by_index[chunk.index] = call


# Offline


def fixed_transport(
    chunks: Iterable[ProviderChunk], error: Exception | None = None
) -> ProviderTransport:
    """A transport without a network: it yields `chunks` in order, then raises `error` if given."""
    return _FixedTransport(tuple(chunks), error)


class _FixedTransport:
    def __init__(self, chunks: tuple[ProviderChunk, ...], error: Exception | None) -> None:
        self._chunks = chunks
        self._error = error

    async def stream(
        self, request: ProviderRequest, signal: AbortSignal | None = None
    ) -> AsyncGenerator[ProviderChunk, None]:
        for chunk in self._chunks:
            yield chunk
        if self._error is not None:
            raise self._error
