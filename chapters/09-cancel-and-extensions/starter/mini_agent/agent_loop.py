"""The agent: ask the model, run the tools it asks for, ask again, until it asks for none.

Two promises hold however a run ends. Every tool call in the new messages has exactly one
result right after its reply. And whoever reads the events sees one `agent_end`, and it is last.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from mini_agent.abort import ABORTED, AbortSignal
from mini_agent.agent_events import (
    AgentEndEvent,
    AgentEvent,
    AgentStartEvent,
    EndReason,
    MessageEndEvent,
    MessageStartEvent,
    MessageUpdateEvent,
    ToolExecutionEndEvent,
    ToolExecutionStartEvent,
    TurnEndEvent,
    TurnStartEvent,
)
from mini_agent.event_stream import EventStream
from mini_agent.events import DoneEvent, ErrorEvent, StartEvent
from mini_agent.extensions import Extensions
from mini_agent.model import Model, StreamOptions
from mini_agent.tools import ToolRegistry, execute_call
from mini_agent.tools.execute import error_result
from mini_agent.types import (
    AgentContext,
    AgentMessage,
    AssistantMessage,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    now_ms,
    tool_calls,
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
    extensions: Extensions | None = None,
) -> AgentStream:
    """One run of the agent on `prompt`, after the messages of `context`, which stays as it is.

    The run starts when the stream is read, and goes at the reader's pace. Its result is the
    `agent_end` event. A model's failure or an abort ends the run with that as its reason; what a
    broken model raises comes out where the stream is read. `tools` takes the place of
    `context.tools`. After `max_turns` turns the model is not asked again.
    """
    if max_turns < 1:
        raise ValueError(f"max_turns must be at least 1, not {max_turns}")

    async def produce(stream: AgentStream) -> None:
        run = _Run(stream, context, model, tools, signal, clock, extensions)
        await run.run(prompt, max_turns)

    return EventStream(_end_of_run, produce)


def messages_for_model(messages: Iterable[AgentMessage]) -> tuple[AgentMessage, ...]:
    """The messages without the replies that failed, and without the results of those replies.

    A reply that broke off may hold half a tool call or nothing at all. It stays in the
    transcript for the user; a provider would refuse it, and with it every later request.
    """
    kept: list[AgentMessage] = []
    failed = False
    for message in messages:
        if not isinstance(message, ToolResultMessage):
            failed = _has_failed(message)
        if not failed:
            kept.append(message)
    return tuple(kept)


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
        extensions: Extensions | None,
    ) -> None:
        self._stream = stream
        self._context = context
        self._model = model
        self._tools = tools
        self._signal = signal
        self._clock = clock
        self._extensions = extensions or Extensions(report=print)  # with no hooks, nothing fails
        self._new: list[AgentMessage] = []

    async def run(self, prompt: UserMessage, max_turns: int) -> None:
        await self._stream.send(AgentStartEvent())
        reason: EndReason | None = None
        turns = 0
        while reason is None:
            await self._stream.send(TurnStartEvent())
            if turns == 0:
                await self._add(prompt)
            reason = await self._turn()
            turns += 1
            if reason is None and turns == max_turns:
                reason = "turnLimit"
        self._stream.push(AgentEndEvent(reason, tuple(self._new)))

    async def _turn(self) -> EndReason | None:
        """One reply and the results of its calls. Returns why the run is over, or None."""
        reply = await self._reply()
        results = await self._answer(reply)
        for result in results:
            await self._add(result)
        await self._stream.send(TurnEndEvent(reply, results))
        if reply.stop_reason == "error" or reply.stop_reason == "aborted":
            return reply.stop_reason
        if not results:
            return "done"
        if self._signal is not None and self._signal.aborted:
            return "aborted"
        return None

    async def _reply(self) -> AssistantMessage:
        """Ask the model and pass its events on."""
        context = replace(
            self._context,
            messages=messages_for_model((*self._context.messages, *self._new)),
            tools=self._tools.definitions,
        )
        started = False
        async with self._model.stream(context, StreamOptions(self._signal)) as events:
            async for event in events:
                if not started:  # a failure may come without a `start`
                    started = True
                    await self._stream.send(MessageStartEvent("assistant"))
                match event:
                    case StartEvent() | DoneEvent() | ErrorEvent():
                        pass  # told by message_start and message_end
                    case _:
                        await self._stream.send(MessageUpdateEvent(event))
            reply = await events.result()
        self._new.append(reply)
        await self._stream.send(MessageEndEvent(reply))
        return reply

    async def _answer(self, reply: AssistantMessage) -> tuple[ToolResultMessage, ...]:
        """One result for each call of the reply, in its order. The calls run in parallel."""
        calls = tool_calls(reply)
        for call in calls:
            await self._stream.send(ToolExecutionStartEvent(call))
        refusal = _refusal(reply)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._answer_call(call, refusal)) for call in calls]
        return tuple(task.result() for task in tasks)

    async def _answer_call(self, call: ToolCall, refusal: str | None) -> ToolResultMessage:
        if refusal is None:
            result = await execute_call(call, self._tools, self._signal, clock=self._clock)
        else:
            result = error_result(call, refusal, self._clock())
        await self._stream.send(ToolExecutionEndEvent(call, result))
        return result

    async def _add(self, message: UserMessage | ToolResultMessage) -> None:
        """Take a message that came whole into the conversation."""
        await self._stream.send(MessageStartEvent(message.role))
        self._new.append(message)
        await self._stream.send(MessageEndEvent(message))


def _refusal(reply: AssistantMessage) -> str | None:
    """Why none of the reply's calls may run, or None if they may.

    A reply that was cut off may have been cut inside a call, and what is left can look complete:
    `build` is a path, and the beginning of `build/tmp`, too.
    """
    match reply.stop_reason:
        case "length":
            return "Not executed: the reply was cut off at its length limit. Make shorter calls."
        case "error":
            return "Not executed: the reply failed before it was complete."
        case "aborted":
            return ABORTED
        case _:
            return None


def _has_failed(message: AgentMessage) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason in ("error", "aborted")


def _end_of_run(event: AgentEvent) -> AgentEndEvent | None:
    return event if isinstance(event, AgentEndEvent) else None
