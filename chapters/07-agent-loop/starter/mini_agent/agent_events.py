"""What the agent tells while it works: the frame around the model's events.

A run is turns, a turn is one reply and the results of its tool calls. For one prompt with one
tool call, and a stop after that turn, the whole order is:

    agent_start
      turn_start
        message_start  message_end                      the prompt
        message_start  message_update*  message_end     the reply
        tool_execution_start  tool_execution_end
        message_start  message_end                      the tool's result
      turn_end
    agent_end
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from mini_agent.events import ModelEvent
from mini_agent.types import AgentMessage, AssistantMessage, ToolCall, ToolResultMessage

EndReason: TypeAlias = Literal["done", "turnLimit", "error", "aborted"]


@dataclass(frozen=True, slots=True)
class AgentStartEvent:
    """A run has begun."""

    type: ClassVar[Literal["agent_start"]] = "agent_start"


@dataclass(frozen=True, slots=True)
class TurnStartEvent:
    """A turn has begun. The first one holds the prompt, too."""

    type: ClassVar[Literal["turn_start"]] = "turn_start"


@dataclass(frozen=True, slots=True)
class MessageStartEvent:
    """A message begins. Only a reply takes time; the others end at once."""

    type: ClassVar[Literal["message_start"]] = "message_start"

    role: Literal["user", "assistant", "toolResult"]


@dataclass(frozen=True, slots=True)
class MessageUpdateEvent:
    """The reply grew. `event` is the model's own: a delta, or the end of a tool call."""

    type: ClassVar[Literal["message_update"]] = "message_update"

    event: ModelEvent


@dataclass(frozen=True, slots=True)
class MessageEndEvent:
    """A message is complete, and is part of the conversation from now on."""

    type: ClassVar[Literal["message_end"]] = "message_end"

    message: AgentMessage


@dataclass(frozen=True, slots=True)
class ToolExecutionStartEvent:
    """A call is taken up. One for each call, in the reply's order."""

    type: ClassVar[Literal["tool_execution_start"]] = "tool_execution_start"

    tool_call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolExecutionEndEvent:
    """A call has its result. One for each call, in the order in which they finish."""

    type: ClassVar[Literal["tool_execution_end"]] = "tool_execution_end"

    tool_call: ToolCall
    result: ToolResultMessage


@dataclass(frozen=True, slots=True)
class TurnEndEvent:
    """A turn is over: its reply, and one result for each of the reply's calls, in their order."""

    type: ClassVar[Literal["turn_end"]] = "turn_end"

    message: AssistantMessage
    tool_results: tuple[ToolResultMessage, ...]


@dataclass(frozen=True, slots=True)
class AgentEndEvent:
    """The run is over. `messages` are the new ones only, the prompt included."""

    type: ClassVar[Literal["agent_end"]] = "agent_end"

    reason: EndReason
    messages: tuple[AgentMessage, ...]


AgentEvent: TypeAlias = (
    AgentStartEvent
    | TurnStartEvent
    | MessageStartEvent
    | MessageUpdateEvent
    | MessageEndEvent
    | ToolExecutionStartEvent
    | ToolExecutionEndEvent
    | TurnEndEvent
    | AgentEndEvent
)
