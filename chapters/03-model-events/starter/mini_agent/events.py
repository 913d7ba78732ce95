"""What a model tells while it answers, event by event.

Any number of events may come, then exactly one terminal one: `done` or `error`. A `start`
comes before every delta; only a failure before the first piece of the reply has none.

`content_index` says which block of the message an event is about. `partial` is the whole content
so far: a snapshot that no later event changes.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from mini_agent.types import AssistantMessage, ContentBlock, ToolCall


@dataclass(frozen=True, slots=True)
class StartEvent:
    """The reply has begun."""

    type: ClassVar[Literal["start"]] = "start"

    partial: tuple[ContentBlock, ...]


@dataclass(frozen=True, slots=True)
class TextDeltaEvent:
    """A text block grew by `delta`."""

    type: ClassVar[Literal["text_delta"]] = "text_delta"

    content_index: int
    delta: str
    partial: tuple[ContentBlock, ...]


@dataclass(frozen=True, slots=True)
class ToolCallDeltaEvent:
    """The JSON text of a tool call's arguments grew by `delta`."""

    type: ClassVar[Literal["toolcall_delta"]] = "toolcall_delta"

    content_index: int
    delta: str
    partial: tuple[ContentBlock, ...]


@dataclass(frozen=True, slots=True)
class ToolCallEndEvent:
    """A tool call is complete: its arguments are parsed."""

    type: ClassVar[Literal["toolcall_end"]] = "toolcall_end"

    content_index: int
    tool_call: ToolCall
    partial: tuple[ContentBlock, ...]


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """The reply is complete."""

    type: ClassVar[Literal["done"]] = "done"

    reason: Literal["stop", "length", "toolUse"]
    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The reply failed or was stopped. `message` keeps what had arrived."""

    type: ClassVar[Literal["error"]] = "error"

    reason: Literal["error", "aborted"]
    message: AssistantMessage


ModelEvent: TypeAlias = (
    StartEvent | TextDeltaEvent | ToolCallDeltaEvent | ToolCallEndEvent | DoneEvent | ErrorEvent
)


def final_message(event: ModelEvent) -> AssistantMessage | None:
    """The message of a terminal event; None for every other event."""
    raise NotImplementedError("step 3.1")
