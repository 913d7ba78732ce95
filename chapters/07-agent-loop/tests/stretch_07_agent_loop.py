"""Chapter 07, stretch: every interleaving, an abort at every event, long runs, broken models."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.testing import assert_same, collect, run
from mini_agent.abort import AbortSignal
from mini_agent.agent_events import (
    AgentEndEvent,
    AgentEvent,
    MessageEndEvent,
    MessageUpdateEvent,
    ToolExecutionEndEvent,
    ToolExecutionStartEvent,
    TurnEndEvent,
)
from mini_agent.agent_loop import AgentStream, messages_for_model, run_agent
from mini_agent.event_stream import EventStream, StreamEndedError
from mini_agent.events import final_message
from mini_agent.model import ModelStream, StreamOptions
from mini_agent.scripted_model import ScriptedModel, tool_call
from mini_agent.tools import Tool, ToolRegistry
from mini_agent.types import (
    AgentContext,
    AgentMessage,
    AssistantMessage,
    ToolCall,
    ToolDefinition,
    ToolResultMessage,
    assistant_message,
    text,
    text_of,
    tool_calls,
    unanswered_calls,
    user_message,
)

PROMPT = user_message("读取 README.md", timestamp=1)
EMPTY = AgentContext(())


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(min_value=0, max_value=12), min_size=1, max_size=8), st.data())
def test_any_interleaving_of_tools(durations: list[int], data: st.DataObject) -> None:
    """However long each tool takes and however it ends: ends in time order, results in order."""
    failing = data.draw(st.sets(st.sampled_from(range(len(durations)))))
    finished: list[str] = []

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        number = int(arguments["path"])
        for _ in range(durations[number]):
            await asyncio.sleep(0)
        finished.append(f"call-{number}")
        if number in failing:
            raise RuntimeError(f"no {number}")
        return f"text {number}"

    calls = [tool_call(f"call-{n}", "read", {"path": str(n)}) for n in range(len(durations))]
    model = scripted(calls, "完成")
    events = run(all_of(run_agent(PROMPT, EMPTY, model, registry(execute), clock=one)))

    ends = [event for event in events if isinstance(event, ToolExecutionEndEvent)]
    assert_same([event.tool_call.id for event in ends], finished)
    results = [each for each in messages_of(events) if isinstance(each, ToolResultMessage)]
    assert_same([result.tool_call_id for result in results], [call.id for call in calls])
    assert_same(
        [text_of(result) for result in results],
        [f"no {n}" if n in failing else f"text {n}" for n in range(len(durations))],
    )
    well_formed(events)


def test_abort_at_every_event() -> None:
    """Wherever the abort falls, the run ends at once, whole, and with every call answered."""
    whole = run(aborted_after(None))
    assert_same(end_of(whole).reason, "done")
    last_piece = max(n for n, event in enumerate(whole) if isinstance(event, MessageUpdateEvent))
    for number in range(len(whole)):
        events = run(aborted_after(number))
        well_formed(events)
        end = end_of(events)
        if number < last_piece:  # behind it the last reply is complete, and may end well
            assert_same(end.reason, "aborted", because=f"the abort came after event {number}")
        assert len(events) <= len(whole) + 2


def test_abort_before_the_first_event() -> None:
    """A signal that is aborted already: the prompt is kept, and the reply is an aborted one."""
    signal = AbortSignal()
    signal.abort()
    model = scripted("never")
    stream = run_agent(PROMPT, EMPTY, model, registry(quick), signal=signal, clock=one)
    events = run(all_of(stream))
    well_formed(events)
    assert_same(end_of(events).reason, "aborted")
    assert_same([message.role for message in messages_of(events)], ["user", "assistant"])


def test_leaving_at_every_event() -> None:
    """A reader that stops anywhere leaves no task, and `run` would say so."""
    total = len(run(aborted_after(None)))

    async def leave_after(number: int) -> None:
        async with stream_with_two_tools(AbortSignal()) as stream:
            seen = 0
            async for _ in stream:
                seen += 1
                if seen > number:
                    break

    for number in range(total):
        run(leave_after(number))


def test_a_hundred_turns() -> None:
    """A long run stays a right one: a hundred turns, each request one call longer."""
    calls = [[tool_call(f"call-{n}", "read", {"path": str(n)})] for n in range(99)]
    model = scripted(*calls, "完成")
    stream = run_agent(PROMPT, EMPTY, model, registry(quick), max_turns=100, clock=one)
    events = run(all_of(stream))
    well_formed(events)
    assert_same(end_of(events).reason, "done")
    assert_same([len(context.messages) for context in model.contexts], list(range(1, 201, 2)))


def test_a_hundred_calls_in_one_reply() -> None:
    """A hundred tools at once, all waiting for the last: they do run side by side."""
    running: list[str] = []
    all_there = asyncio.Event()

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        running.append(arguments["path"])
        if len(running) == 100:
            all_there.set()
        await all_there.wait()
        return str(arguments["path"])

    calls = [tool_call(f"call-{n}", "read", {"path": str(n)}) for n in range(100)]
    events = run(all_of(run_agent(PROMPT, EMPTY, scripted(calls, "完成"), registry(execute))))
    well_formed(events)
    results = [each for each in messages_of(events) if isinstance(each, ToolResultMessage)]
    assert_same([text_of(result) for result in results], [str(n) for n in range(100)])


def test_result_without_reading() -> None:
    """Whoever wants only the end awaits `result()` and reads no event."""

    async def scenario() -> AgentEndEvent:
        call = tool_call("call-1", "read", {"path": "a"})
        async with run_agent(PROMPT, EMPTY, scripted([call], "完成"), registry(quick)) as stream:
            return await stream.result()

    end = run(scenario())
    assert_same((end.reason, text_of(end.messages[-1])), ("done", "完成"))


def test_nothing_happens_before_the_stream_is_read() -> None:
    """Making a run asks no model; closing it unread does not, either."""

    async def scenario(model: ScriptedModel) -> None:
        stream = run_agent(PROMPT, EMPTY, model, registry(quick))
        await asyncio.sleep(0)
        await stream.aclose()

    model = scripted("never")
    run(scenario(model))
    assert_same(model.call_count, 0)


def test_a_limit_below_one_is_a_mistake() -> None:
    """No turn at all could not even answer: ValueError, at once."""
    with pytest.raises(ValueError, match="max_turns"):
        run_agent(PROMPT, EMPTY, scripted("x"), ToolRegistry(), max_turns=0)


class Broken:
    """A model that breaks the contract in one of three ways."""

    def __init__(self, how: str) -> None:
        self._how = how

    def stream(self, context: AgentContext, options: StreamOptions | None = None) -> ModelStream:
        if self._how == "raises":
            raise RuntimeError("not even a stream")

        async def produce(stream: ModelStream) -> None:
            if self._how == "raises later":
                raise RuntimeError("in the middle")

        return EventStream(final_message, produce)


@pytest.mark.parametrize(
    ("how", "error"),
    [("raises", RuntimeError), ("raises later", RuntimeError), ("says nothing", StreamEndedError)],
)
def test_a_broken_model_never_hangs_the_run(how: str, error: type[Exception]) -> None:
    """A programmer's mistake comes out where the run is read."""

    async def scenario() -> None:
        async with asyncio.timeout(5):
            await all_of(run_agent(PROMPT, EMPTY, Broken(how), ToolRegistry()))

    with pytest.raises(error):
        run(scenario())


def test_calls_with_one_id_are_answered_one_by_one() -> None:
    """Some servers give every call the same id, or none: each call still has its own result."""
    calls = [ToolCall("", "read", {"path": str(n)}) for n in range(3)]
    events = run(all_of(run_agent(PROMPT, EMPTY, scripted(calls, "完成"), registry(quick))))
    well_formed(events)
    results = [each for each in messages_of(events) if isinstance(each, ToolResultMessage)]
    assert_same([text_of(result) for result in results], ["0", "1", "2"])


def test_a_reply_that_says_stop_and_calls_a_tool() -> None:
    """Some providers finish a tool call with `stop`: what counts is the call."""
    reply = assistant_message([tool_call("call-1", "read", {"path": "a"})], "stop")
    model = scripted(reply, "完成")
    events = run(all_of(run_agent(PROMPT, EMPTY, model, registry(quick))))
    well_formed(events)
    assert_same(model.call_count, 2)


def test_a_length_stop_without_calls_is_the_end() -> None:
    """A text that was cut is shown as it is; nobody asks again unasked."""
    model = scripted(assistant_message([text("很久以")], "length"))
    events = run(all_of(run_agent(PROMPT, EMPTY, model, registry(quick))))
    well_formed(events)
    assert_same((end_of(events).reason, model.call_count), ("done", 1))


def test_a_tool_that_changes_its_arguments_changes_no_transcript() -> None:
    """Two tools get the same lists in their arguments, and each may spoil its own."""

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        arguments["path"] = "changed"
        arguments.clear()
        return "done"

    call = tool_call("call-1", "read", {"path": "a"})
    model = scripted([call], "完成")
    events = run(all_of(run_agent(PROMPT, EMPTY, model, registry(execute))))
    told = [event.tool_call for event in events if isinstance(event, ToolExecutionStartEvent)]
    assert_same(told[0].arguments, {"path": "a"})
    reply = model.contexts[1].messages[1]
    assert isinstance(reply, AssistantMessage)
    assert_same(tool_calls(reply)[0].arguments, {"path": "a"})


stop_reasons = st.sampled_from(["stop", "length", "toolUse", "error", "aborted"])


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(stop_reasons, st.integers(min_value=0, max_value=3)), max_size=6))
def test_any_script_gives_a_whole_transcript(script: list[tuple[Any, int]]) -> None:
    """Whatever the replies are: one end, every call answered, a next request that is whole."""
    replies = []
    for turn, (reason, count) in enumerate(script):
        calls = [tool_call(f"call-{turn}-{n}", "read", {"path": "a"}) for n in range(count)]
        replies.append(assistant_message([text("…"), *calls], reason, error_message="no"))
    model = scripted(*replies)
    stream = run_agent(PROMPT, EMPTY, model, registry(quick), max_turns=5, clock=one)
    events = run(all_of(stream))
    well_formed(events)
    assert_same({message.timestamp for message in messages_of(events)} == {1}, True)
    for context in model.contexts:
        assert_same(list(unanswered_calls(context.messages)), [])
        for message in context.messages:
            assert getattr(message, "stop_reason", "stop") not in ("error", "aborted")


@given(st.lists(st.sampled_from(["u", "ok", "bad", "r"]), max_size=12))
def test_messages_for_model_keeps_order_and_drops_only_failures(kinds: list[str]) -> None:
    """What is kept is a part of what was there, in its order; without failures it is all."""
    made: dict[str, AgentMessage] = {
        "u": user_message("x", timestamp=0),
        "ok": assistant_message([text("x")]),
        "bad": assistant_message([text("x")], "error"),
        "r": ToolResultMessage("call-1", "read", (text("x"),)),
    }
    messages = [made[kind] for kind in kinds]
    kept = list(messages_for_model(messages))
    remaining = iter(messages)
    assert all(any(message is other for other in remaining) for message in kept)
    assert made["bad"] not in kept
    if "bad" not in kinds:
        assert_same(kept, messages)
    assert_same(kept.count(made["u"]), kinds.count("u"))


def stream_with_two_tools(signal: AbortSignal) -> AgentStream:
    """Text, then two calls that take different times, then a last reply."""
    calls = [tool_call(f"call-{n}", "read", {"path": str(n)}) for n in (3, 1)]
    model = scripted([text("正在读取"), *calls], "完成", chunk_size=3)
    return run_agent(PROMPT, EMPTY, model, registry(slow), signal=signal, clock=one)


async def aborted_after(number: int | None) -> list[AgentEvent]:
    """The events of that run, with an abort when the reader has seen event `number`."""
    signal = AbortSignal()
    events: list[AgentEvent] = []
    async with asyncio.timeout(10), stream_with_two_tools(signal) as stream:
        async for event in stream:
            if len(events) == number:
                signal.abort()
            events.append(event)
    return events


def well_formed(events: list[AgentEvent]) -> None:
    """The grammar of a run: what starts ends, in its frame, and no call is left open."""
    kinds = [event.type for event in events]
    assert_same((kinds[0], kinds[-1]), ("agent_start", "agent_end"))
    assert_same(kinds.count("agent_end"), 1)
    depth = {"turn": 0, "message": 0, "tool_execution": 0}
    for event in events[1:-1]:
        what, _, step = event.type.rpartition("_")
        if step == "update":
            assert isinstance(event, MessageUpdateEvent)
            assert_same(depth["message"], 1, because="an update belongs to a message")
            continue
        depth[what] += 1 if step == "start" else -1
        assert depth[what] in ((0, 1) if what != "tool_execution" else range(1000))
        if what != "turn":
            assert_same(depth["turn"], 1, because=f"{event.type} stands in a turn")
    assert_same(depth, {"turn": 0, "message": 0, "tool_execution": 0})
    messages = messages_of(events)
    assert_same(list(end_of(events).messages), messages)
    open_calls: list[ToolCall] = []
    refused = False
    for message in messages:
        if isinstance(message, ToolResultMessage):
            assert open_calls, "a result without a call"
            assert message.is_error or not refused, "a call of a broken reply was run"
            assert_same(message.tool_call_id, open_calls.pop(0).id)
        else:
            assert_same(open_calls, [], because="the results of a reply follow it at once")
            if isinstance(message, AssistantMessage):
                open_calls = list(tool_calls(message))
                refused = message.stop_reason in ("length", "error", "aborted")
    assert_same(open_calls, [], because="no call is left without a result")
    for event in events:
        if isinstance(event, TurnEndEvent):
            assert_same(
                [result.tool_call_id for result in event.tool_results],
                [call.id for call in tool_calls(event.message)],
            )


def messages_of(events: Iterable[AgentEvent]) -> list[AgentMessage]:
    return [event.message for event in events if isinstance(event, MessageEndEvent)]


def end_of(events: list[AgentEvent]) -> AgentEndEvent:
    end = events[-1]
    assert isinstance(end, AgentEndEvent)
    return end


def scripted(
    *replies: Any,
    chunk_size: int = 100,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> ScriptedModel:
    return ScriptedModel(replies, chunk_size=chunk_size, sleep=sleep, clock=one)


def registry(execute: Any) -> ToolRegistry:
    schema = {"type": "object", "required": ["path"]}
    return ToolRegistry([Tool(ToolDefinition("read", "Read.", schema), execute)])


async def quick(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
    return str(arguments["path"])


async def slow(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
    for _ in range(10 * int(arguments["path"])):
        await asyncio.sleep(0)
    return str(arguments["path"])


def one() -> int:
    return 1


async def all_of(stream: AgentStream) -> list[AgentEvent]:
    async with stream:
        return await collect(stream)
