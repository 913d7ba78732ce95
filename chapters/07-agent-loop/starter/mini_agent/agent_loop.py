"""The agent: ask the model, run the tools it asks for, ask again, until it asks for none.

Two promises hold however a run ends. Every tool call in the new messages has exactly one
result right after its reply. And whoever reads the events sees one `agent_end`, and it is last.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from mini_agent.abort import AbortSignal
from mini_agent.agent_events import AgentEndEvent, AgentEvent, EndReason
from mini_agent.event_stream import EventStream
from mini_agent.model import Model
from mini_agent.tools import ToolRegistry
from mini_agent.types import (
    AgentContext,
    AgentMessage,
    AssistantMessage,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    now_ms,
)

AgentStream: TypeAlias = EventStream[AgentEvent, AgentEndEvent]

MAX_TURNS = 25


def run_agent(
    prompt: UserMessage,
    context: AgentContext,
    model: Model,
    tools: ToolRegistry,
    *,
    signal: AbortSignal | None = None,
    max_turns: int = MAX_TURNS,
    clock: Callable[[], int] = now_ms,
) -> AgentStream:
    """One run of the agent on `prompt`, after the messages of `context`, which stays as it is.

    The run starts when the stream is read, and goes at the reader's pace. Its result is the
    `agent_end` event. A model's failure or an abort ends the run with that as its reason; what a
    broken model raises comes out where the stream is read. `tools` takes the place of
    `context.tools`. After `max_turns` turns the model is not asked again.
    """
    raise NotImplementedError("step 7.1")


def messages_for_model(messages: Iterable[AgentMessage]) -> tuple[AgentMessage, ...]:
    """The messages without the replies that failed, and without the results of those replies.

    A reply that broke off may hold half a tool call or nothing at all. It stays in the
    transcript for the user; a provider would refuse it, and with it every later request.
    """
    raise NotImplementedError("step 7.3")


class _Run:
    """One run: the messages so far, and the steps that add to them."""

    def __init__(
        self,
        stream: AgentStream,
        context: AgentContext,
        model: Model,
        tools: ToolRegistry,
        signal: AbortSignal | None,
        clock: Callable[[], int],
    ) -> None:
        self._stream = stream
        self._context = context
        self._model = model
        self._tools = tools
        self._signal = signal
        self._clock = clock
        self._new: list[AgentMessage] = []

    async def run(self, prompt: UserMessage, max_turns: int) -> None:
        """From agent_start to agent_end: turns until one of them says why the run is over."""
        raise NotImplementedError("step 7.1")

    async def _turn(self) -> EndReason | None:
        """One reply and the results of its calls. Returns why the run is over, or None."""
        raise NotImplementedError("step 7.1")

    async def _reply(self) -> AssistantMessage:
        """Ask the model and pass its events on."""
        raise NotImplementedError("step 7.1")

    async def _answer(self, reply: AssistantMessage) -> tuple[ToolResultMessage, ...]:
        """One result for each call of the reply, in its order. The calls run in parallel."""
        raise NotImplementedError("step 7.2")

    async def _answer_call(self, call: ToolCall, refusal: str | None) -> ToolResultMessage:
        """The result of one call, and its tool_execution_end. With a `refusal` nothing runs."""
        raise NotImplementedError("step 7.2")

    async def _add(self, message: UserMessage | ToolResultMessage) -> None:
        """Take a message that came whole into the conversation."""
        raise NotImplementedError("step 7.1")


def _refusal(reply: AssistantMessage) -> str | None:
    """Why none of the reply's calls may run, or None if they may.

    A reply that was cut off may have been cut inside a call, and what is left can look complete:
    `build` is a path, and the beginning of `build/tmp`, too.
    """
    raise NotImplementedError("step 7.3")


def _end_of_run(event: AgentEvent) -> AgentEndEvent | None:
    return event if isinstance(event, AgentEndEvent) else None
