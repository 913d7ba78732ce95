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


class ToolCall:
    """The model asks for one tool to be run.

    `raw_arguments` is the JSON text as the provider wrote it. `arguments` is that text parsed,
    and None while it is still arriving or was cut off: a half-written call has no arguments yet.
    """

    # step 1.1: the fields


ContentBlock: TypeAlias = TextContent | ToolCall


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one reply. `input` leaves out what was read from or written to a cache.

    A `total` that no provider gave is the sum of the four counts.
    """

    # step 1.2: the fields, and the total that nobody gave


class UserMessage:
    """What the user said. `timestamp` is in milliseconds since the epoch."""

    # step 1.1: the fields


class AssistantMessage:
    """One reply of a model, whole or as far as it came.

    A reply that failed is a message too: `stop_reason` is "error" or "aborted",
    `error_message` says why, and `content` keeps what had arrived.
    """

    # step 1.1: the fields


class ToolResultMessage:
    """What a tool answered. `tool_call_id` pairs it with the call that asked for it."""

    # step 1.1: the fields


AgentMessage: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage


class AgentContext:
    """All that a model is given for one reply. The system prompt stands apart from the messages."""

    # step 1.1: the fields


def now_ms() -> int:
    """The wall clock in milliseconds since the epoch."""
    raise NotImplementedError("step 1.2")


def text(value: str) -> TextContent:
    """A text block, in one short word."""
    raise NotImplementedError("step 1.3")


def user_message(content: str | Iterable[TextContent], timestamp: int | None = None) -> UserMessage:
    """A user message from a string or from blocks; without a timestamp it is stamped now."""
    raise NotImplementedError("step 1.3")


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
    raise NotImplementedError("step 1.3")


def text_of(message: AgentMessage) -> str:
    """The message's text blocks, joined with nothing between them."""
    raise NotImplementedError("step 1.4")


def tool_calls(message: AssistantMessage) -> tuple[ToolCall, ...]:
    """The message's tool calls, in content order."""
    raise NotImplementedError("step 1.4")


def unanswered_calls(messages: Iterable[AgentMessage]) -> tuple[ToolCall, ...]:
    """The calls that have no result yet, in the order in which they were made.

    A provider refuses a conversation in which a call has no result, so whoever stops
    early (an abort, a turn limit) uses this to see what is still owed.
    """
    raise NotImplementedError("step 1.4")
