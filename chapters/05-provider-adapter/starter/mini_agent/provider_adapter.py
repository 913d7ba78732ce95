"""Between the agent's messages and a provider's: what both sides of the network agree on.

Outward, pure functions write a context as wire messages. Inward, a transport yields three kinds
of `ProviderChunk`, and `ProviderModel` builds a reply from them. Neither side sees the
other's state, so each can be read, and tested, without the network.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from mini_agent.abort import AbortSignal, race
from mini_agent.model import ModelError, ModelStream, StreamOptions
from mini_agent.reply import Reply, reply_stream
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
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
    raise NotImplementedError("step 5.1: to_provider_messages")


def to_provider_tools(tools: Iterable[ToolDefinition]) -> list[dict[str, Any]] | None:
    """The tools as wire tools; None where there are none, since an empty list is refused."""
    raise NotImplementedError("step 5.1: to_provider_tools")


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
        raise NotImplementedError("step 5.2: ProviderModel.stream")


# Offline


def fixed_transport(
    chunks: Iterable[ProviderChunk], error: Exception | None = None
) -> ProviderTransport:
    """A transport without a network: it yields `chunks` in order, then raises `error` if given."""
    raise NotImplementedError("step 5.2: fixed_transport")
