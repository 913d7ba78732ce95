"""Canonical messages: the one form in which the agent keeps a conversation.

Every provider has its own wire format. The agent has this one, and each adapter translates.
All classes are frozen: a message that was handed on never changes under its reader.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

StopReason: TypeAlias = Literal["stop", "length", "toolUse", "error", "aborted"]


@dataclass(frozen=True, slots=True)
class TextContent:
    """A piece of text."""

    type: ClassVar[Literal["text"]] = "text"

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for one tool to be run.

    `raw_arguments` is the JSON text as the provider wrote it. `arguments` is that text parsed,
    and None while it is still arriving or was cut off: a half-written call has no arguments yet.
    """

    type: ClassVar[Literal["toolCall"]] = "toolCall"

    id: str
    name: str
    arguments: dict[str, Any] | None = None
    raw_arguments: str | None = None


ContentBlock: TypeAlias = TextContent | ToolCall


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one reply. `input` leaves out what was read from or written to a cache.

    A `total` that no provider gave is the sum of the four counts.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total: int = 0

    def __post_init__(self) -> None:
        if self.total == 0:
            total = self.input + self.output + self.cache_read + self.cache_write
            object.__setattr__(self, "total", total)  # frozen: this is the one way in


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user said. `timestamp` is in milliseconds since the epoch."""

    role: ClassVar[Literal["user"]] = "user"

    content: tuple[TextContent, ...]
    timestamp: int


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One reply of a model, whole or as far as it came.

    A reply that failed is a message too: `stop_reason` is "error" or "aborted",
    `error_message` says why, and `content` keeps what had arrived.
    """

    role: ClassVar[Literal["assistant"]] = "assistant"

    content: tuple[ContentBlock, ...]
    stop_reason: StopReason
    provider: str = ""
    model: str = ""
    usage: Usage = Usage()
    timestamp: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResultMessage:
    """What a tool answered. `tool_call_id` pairs it with the call that asked for it."""

    role: ClassVar[Literal["toolResult"]] = "toolResult"

    tool_call_id: str
    tool_name: str
    content: tuple[TextContent, ...]
    is_error: bool = False
    timestamp: int = 0


AgentMessage: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as the model is told of it. `parameters` is a JSON Schema for the call's arguments."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AgentContext:
    """All that a model is given for one reply. The system prompt stands apart from the messages."""

    messages: tuple[AgentMessage, ...]
    system_prompt: str | None = None
    tools: tuple[ToolDefinition, ...] = ()


def now_ms() -> int:
    """The wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def text(value: str) -> TextContent:
    """A text block, in one short word."""
    return TextContent(value)


def user_message(content: str | Iterable[TextContent], timestamp: int | None = None) -> UserMessage:
    """A user message from a string or from blocks; without a timestamp it is stamped now."""
    blocks = (text(content),) if isinstance(content, str) else tuple(content)
    return UserMessage(blocks, now_ms() if timestamp is None else timestamp)


def assistant_message(
    content: Iterable[ContentBlock],
    stop_reason: StopReason = "stop",
    *,
    provider: str = "",
    model: str = "",
    usage: Usage = Usage(),
    timestamp: int = 0,
    error_message: str | None = None,
) -> AssistantMessage:
    """An assistant message from any iterable of blocks."""
    return AssistantMessage(
        tuple(content), stop_reason, provider, model, usage, timestamp, error_message
    )


def text_of(message: AgentMessage) -> str:
    """The message's text blocks, joined with nothing between them."""
    return "".join(block.text for block in message.content if isinstance(block, TextContent))


def tool_calls(message: AssistantMessage) -> tuple[ToolCall, ...]:
    """The message's tool calls, in content order."""
    return tuple(block for block in message.content if isinstance(block, ToolCall))


def unanswered_calls(messages: Iterable[AgentMessage]) -> tuple[ToolCall, ...]:
    """The calls that have no result yet, in the order in which they were made.

    A provider refuses a conversation in which a call has no result, so whoever stops
    early (an abort, a turn limit) uses this to see what is still owed.
    """
    owed: list[ToolCall] = []  # no dict by id: a careless provider uses one id twice
    for message in messages:
        if isinstance(message, AssistantMessage):
            owed.extend(tool_calls(message))
        elif isinstance(message, ToolResultMessage):
            answered = next((call for call in owed if call.id == message.tool_call_id), None)
            if answered is not None:
                owed.remove(answered)
    return tuple(owed)
