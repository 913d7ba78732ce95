"""Chapter 07, the focused tests: turns, parallel tools, every way to end, and the REPL."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from grader.testing import assert_same, collect, plain, run
from mini_agent.abort import AbortSignal
from mini_agent.agent_events import (
    AgentEndEvent,
    AgentEvent,
    MessageEndEvent,
    MessageStartEvent,
    MessageUpdateEvent,
    ToolExecutionEndEvent,
    ToolExecutionStartEvent,
    TurnEndEvent,
)
from mini_agent.agent_loop import AgentStream, run_agent
from mini_agent.event_stream import EventStream
from mini_agent.events import DoneEvent, TextDeltaEvent, final_message
from mini_agent.main import Repl, usage_line
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
CALL = tool_call("call-1", "read", {"path": "README.md"})
EMPTY = AgentContext(())


# Step 7.1


def test_turn_of_one_prompt_and_one_reply() -> None:
    """Without tool calls a run is one turn: the prompt, then the reply as it grows (step 7.1)."""
    model = scripted("正在读取", chunk_size=2)
    events = run(all_of(run_agent(PROMPT, EMPTY, model, ToolRegistry(), clock=one)))

    assert_same(
        [told(event) for event in events],
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update text_delta",
            "message_update text_delta",
            "message_end assistant",
            "turn_end",
            "agent_end done",
        ],
        because="a turn holds its messages, and every message has a start and an end",
    )
    updates = [event.event for event in events if isinstance(event, MessageUpdateEvent)]
    assert_same(
        [event.delta for event in updates if isinstance(event, TextDeltaEvent)],
        ["正在", "读取"],
        because="an update carries the model's own event, piece by piece",
    )
    reply = events[-3].message if isinstance(events[-3], MessageEndEvent) else None
    assert_same(
        text_of(reply) if reply else None, "正在读取", because="message_end has the whole reply"
    )
    assert_same(
        events[-1],
        AgentEndEvent("done", (PROMPT, reply)) if reply else None,
        because="agent_end has the new messages: the prompt and the reply",
    )


def test_turn_gives_the_model_the_whole_conversation() -> None:
    """Earlier messages, the prompt, the system prompt, the tools; your context stays (step 7.1)."""
    earlier = (user_message("你好", timestamp=0), assistant_message([text("你好！")]))
    context = AgentContext(earlier, "回答要简洁。")
    model = scripted("好")
    tools = registry(read=answering("# Project"))

    end = run(result_of(run_agent(PROMPT, context, model, tools, clock=one)))

    assert_same(
        plain(model.contexts),
        plain((AgentContext((*earlier, PROMPT), "回答要简洁。", tools.definitions),)),
        because="one turn is one request, with everything that was said before it",
    )
    assert_same(
        [message.role for message in end.messages],
        ["user", "assistant"],
        because="the result holds new messages only: what was there before is the caller's",
    )
    assert_same(
        plain(context),
        plain(AgentContext(earlier, "回答要简洁。")),
        because="the caller's context stays as it is",
    )


# Step 7.2


def test_tools_one_call_is_twelve_events() -> None:
    """One prompt, one reply with one call, its result: twelve events in this order (step 7.2)."""
    reply = assistant_message([CALL], "toolUse")
    model = TerminalOnly(reply)
    tools = registry(read=answering("# Project"))
    result = ToolResultMessage("call-1", "read", (text("# Project"),), timestamp=1)

    events = run(all_of(run_agent(PROMPT, EMPTY, model, tools, max_turns=1, clock=one)))

    assert_same(
        [told(event) for event in events],
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_end assistant",
            "tool_execution_start call-1",
            "tool_execution_end call-1",
            "message_start toolResult",
            "message_end toolResult",
            "turn_end call-1",
            "agent_end turnLimit",
        ],
        because="a tool runs after its reply is complete, and its result is a message of its own",
    )
    assert_same(
        plain(events[6:8] + events[9:11]),
        plain(
            [
                ToolExecutionStartEvent(CALL),
                ToolExecutionEndEvent(CALL, result),
                MessageEndEvent(result),
                TurnEndEvent(reply, (result,)),
            ]
        ),
        because="call and result are told whole, and the turn's end holds reply and results",
    )
    assert_same(
        plain(events[-1]),
        plain(AgentEndEvent("turnLimit", (PROMPT, reply, result))),
        because="the new messages are prompt, reply and result",
    )


def test_tools_the_model_is_asked_again_with_the_results() -> None:
    """Turns go on until a reply has no tool call; each request has all before it (step 7.2)."""
    again = tool_call("call-2", "read", {"path": "docs"})
    model = scripted([text("正在读取"), CALL], [again], "完成")
    tools = registry(read=answering("# Project"))

    end = run(result_of(run_agent(PROMPT, EMPTY, model, tools, clock=one)))

    assert_same(
        [[message.role for message in context.messages] for context in model.contexts],
        [
            ["user"],
            ["user", "assistant", "toolResult"],
            ["user", "assistant", "toolResult", "assistant", "toolResult"],
        ],
        because="each request holds all that was said before it: calls and their results in pairs",
    )
    assert_same(
        plain(end.messages[:5]),
        plain(model.contexts[2].messages),
        because="what the model read is what the transcript holds",
    )
    assert_same(
        (end.reason, text_of(end.messages[-1])),
        ("done", "完成"),
        because="a reply without a tool call is the last one",
    )


def test_tools_of_one_reply_run_at_the_same_time() -> None:
    """End events come as tools finish; result messages stand in the reply's order (step 7.2)."""
    finished: list[str] = []

    async def waits_for_those_behind(arguments: dict[str, Any], _: AbortSignal | None) -> str:
        mine = arguments["path"]
        behind = {"a": ["c", "b"], "b": ["c"], "c": []}[mine]
        for _attempt in range(300):
            if finished == behind:
                break
            await asyncio.sleep(0)
        finished.append(mine)
        return f"text of {mine}"

    calls = [tool_call(f"call-{path}", "read", {"path": path}) for path in ("a", "b", "c")]
    model = scripted(calls, "完成")
    stream = run_agent(PROMPT, EMPTY, model, registry(read=waits_for_those_behind), clock=one)
    events = run(all_of(stream))

    assert_same(
        [told(event) for event in events if event.type.startswith("tool_execution")],
        [
            "tool_execution_start call-a",
            "tool_execution_start call-b",
            "tool_execution_start call-c",
            "tool_execution_end call-c",
            "tool_execution_end call-b",
            "tool_execution_end call-a",
        ],
        because="a waits for b, and b for c: only tools that run side by side can finish",
    )
    ends = [event for event in events if isinstance(event, TurnEndEvent)]
    expected = ["call-a", "call-b", "call-c"]
    assert_same(
        [result.tool_call_id for result in ends[0].tool_results],
        expected,
        because="turn_end holds the results in the order of the calls",
    )
    messages = model.contexts[-1].messages
    assert_same(
        [each.tool_call_id for each in messages if isinstance(each, ToolResultMessage)],
        expected,
        because="the model reads the results in the order in which it asked, on every run",
    )


def test_tools_stop_when_the_reader_leaves() -> None:
    """Closing the stream ends what runs, and waits until it has cleaned up (step 7.2)."""
    log: list[str] = []

    async def slow(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        log.append(f"{arguments['path']} started")
        try:
            await a_long_time()
            return "too late"
        finally:
            log.append(f"{arguments['path']} released")

    calls = [tool_call(f"call-{path}", "read", {"path": path}) for path in ("a", "b")]
    stream = run_agent(PROMPT, EMPTY, scripted(calls), registry(read=slow), clock=one)

    async def leave_while_they_run() -> list[str]:
        reading = asyncio.create_task(all_of(stream))
        for _ in range(100):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        return sorted(log)

    assert_same(
        run(leave_while_they_run()),
        ["a released", "a started", "b released", "b started"],
        because="whoever leaves `async with` leaves no tool behind",
    )


# Step 7.3


def test_end_at_the_turn_limit() -> None:
    """After `max_turns` turns the model is not asked again, and no call is left open (step 7.3)."""
    calls = [[tool_call(f"call-{n}", "read", {"path": "a"})] for n in range(5)]
    model = scripted(*calls)
    tools = registry(read=answering("again"))

    end = run(result_of(run_agent(PROMPT, EMPTY, model, tools, max_turns=3, clock=one)))

    assert_same(model.call_count, 3, because="three turns are three requests")
    assert_same(end.reason, "turnLimit", because="the caller should know that there was more to do")
    assert_same(
        open_ids(end.messages),
        [],
        because="a provider refuses a conversation in which a call has no result",
    )
    assert_same(
        [message.role for message in end.messages][-2:],
        ["assistant", "toolResult"],
        because="the calls of the last turn are run like all others",
    )


def test_end_with_a_reply_that_failed() -> None:
    """After a failed reply no tool runs, no request follows, its calls are answered (step 7.3)."""
    ran: list[str] = []
    tools = registry(read=noting(ran))

    failed = assistant_message([text("正"), CALL], "error", error_message="overloaded")
    model = scripted(failed, "never asked for")
    end = run(result_of(run_agent(PROMPT, EMPTY, model, tools, clock=one)))
    assert_same(
        (end.reason, model.call_count, ran),
        ("error", 1, []),
        because="a reply that failed is the end of the run, and what it asked for is not done",
    )
    assert_same(
        answers(end.messages),
        [("call-1", True)],
        because="its call gets an error result, so that the transcript stays whole",
    )

    signal = AbortSignal()

    async def abort_at_the_third_piece(_: float) -> None:
        pieces.append(1)
        if len(pieces) == 3:
            signal.abort()

    pieces: list[int] = []
    model = scripted("正在读取文件", chunk_size=1, sleep=abort_at_the_third_piece)
    stream = run_agent(PROMPT, EMPTY, model, tools, signal=signal, clock=one)
    end = run(result_of(stream))
    assert_same(
        (end.reason, text_of(end.messages[-1])),
        ("aborted", "正在"),
        because="the signal reaches the model, and what had arrived is kept",
    )


def test_end_of_a_reply_at_its_length_limit() -> None:
    """`length` executes nothing, not even what looks complete, and the run goes on (step 7.3)."""
    ran: list[str] = []
    cut = ToolCall("call-2", "read", None, '{"path":"READ')
    model = scripted(assistant_message([CALL, cut], "length"), "完成")

    stream = run_agent(PROMPT, EMPTY, model, registry(read=noting(ran)), clock=one)
    end = run(result_of(stream))

    assert_same(ran, [], because="the reply was cut: nobody knows what it would have asked for")
    assert_same(
        answers(end.messages),
        [("call-1", True), ("call-2", True)],
        because="each call of the cut reply is answered with an error",
    )
    assert_same(
        (end.reason, model.call_count, text_of(end.messages[-1])),
        ("done", 2, "完成"),
        because="the model is asked again, and can make shorter calls",
    )


def test_end_by_an_abort_while_tools_run() -> None:
    """What is finished is kept, what runs is aborted, no request follows (step 7.3)."""
    signal = AbortSignal()

    async def slow_or_quick(arguments: dict[str, Any], given: AbortSignal | None) -> str:
        if arguments["path"] == "slow":
            await a_long_time()
        return "quick"

    calls = [tool_call(f"call-{path}", "read", {"path": path}) for path in ("slow", "quick")]
    model = scripted(calls, "never asked for")
    tools = registry(read=slow_or_quick)
    stream = run_agent(PROMPT, EMPTY, model, tools, signal=signal, clock=one)

    async def abort_after_the_first_end() -> list[AgentEvent]:
        seen: list[AgentEvent] = []
        async with stream:
            async for event in stream:
                seen.append(event)
                if isinstance(event, ToolExecutionEndEvent):
                    signal.abort()
        return seen

    events = run(abort_after_the_first_end())
    end = events[-1]
    assert_same(
        told(end), "agent_end aborted", because="an aborted run ends all the same, and says why"
    )
    assert isinstance(end, AgentEndEvent)
    assert_same(model.call_count, 1, because="after an abort nobody wants another reply")
    assert_same(
        [text_of(message) for message in end.messages[2:]],
        ["Operation aborted", "quick"],
        because="each call has a result: the slow one was aborted, the quick one had answered",
    )


def test_end_of_a_failed_reply_is_no_burden_for_the_next() -> None:
    """A request leaves out failed replies and their results, and nothing else (step 7.3)."""
    good = (
        user_message("一", timestamp=0),
        assistant_message([CALL], "toolUse"),
        ToolResultMessage("call-1", "read", (text("# Project"),)),
        assistant_message([text("完成")]),
    )
    bad = (
        user_message("二", timestamp=0),
        assistant_message([CALL], "error", error_message="overloaded"),
        ToolResultMessage("call-1", "read", (text("not executed"),), is_error=True),
        user_message("三", timestamp=0),
        assistant_message([], "aborted", error_message="Operation aborted"),
    )
    model = scripted("好")
    run(result_of(run_agent(PROMPT, AgentContext((*good, *bad)), model, ToolRegistry())))

    assert_same(
        plain(model.contexts[0].messages),
        plain((*good, bad[0], bad[3], PROMPT)),
        because="half a reply would be refused by a provider; an id used again is no reason to "
        "leave out the good exchange",
    )


# Step 7.4


def test_repl_shows_a_turn_while_it_comes() -> None:
    """Text is written piece by piece, a call and a result on one line each (step 7.4)."""
    model = scripted([text("正在读取"), CALL], "完成", chunk_size=2)
    written: list[str] = []
    repl = Repl(
        model, registry(read=answering("# Project\n\nText")), write=written.append, clock=one
    )

    all_well = repl.run(["读取 README.md\n"])

    assert_same(
        "".join(written),
        "正在读取\n"
        '[tool call] read {"path":"README.md"}\n'
        "[tool result] read: # Project (3 lines)\n"
        "完成\n"
        f"{usage_line(repl.messages)}\n",
        because="the reply's text, its call, the call's result, the last reply, the usage",
    )
    assert_same(
        [piece for piece in written if piece in ("正在", "读取")],
        ["正在", "读取"],
        because="each piece is written when it comes, and not at the end of the reply",
    )
    assert_same(all_well, True, because="the one prompt came to its end")


def test_repl_keeps_the_conversation() -> None:
    """Each prompt continues the one before, and a failed one is shown and survived (step 7.4)."""
    broken = assistant_message([], "error", error_message="overloaded")
    model = scripted("一", broken, "三")
    written: list[str] = []
    repl = Repl(model, ToolRegistry(), write=written.append, clock=one)

    all_well = repl.run(["first", "second", "third"])

    assert_same(
        [[text_of(message) for message in context.messages] for context in model.contexts],
        [["first"], ["first", "一", "second"], ["first", "一", "second", "third"]],
        because="a request holds what was said so far, without the reply that failed",
    )
    assert_same(
        [message.role for message in repl.messages],
        ["user", "assistant"] * 3,
        because="the transcript has all of it, the failed reply included",
    )
    assert_same(
        "[error] overloaded" in "".join(written),
        True,
        because=f"the user can read what went wrong; written was {written}",
    )
    assert_same(all_well, False, because="one of three prompts failed, and a script will ask")


def test_repl_obeys_commands() -> None:
    """/help lists them, /exit leaves, an unknown one is told, blanks are nothing (step 7.4)."""
    model = scripted("好", "never asked for")
    written: list[str] = []
    repl = Repl(model, ToolRegistry(), write=written.append, clock=one)

    repl.run(["", "   \n", "/help"])
    assert_same(
        [name for name in ("/help", "/exit") if name in "".join(written)],
        ["/help", "/exit"],
        because=f"/help names every command; written was {written}",
    )
    written.clear()
    repl.run(["/what is it\n"])
    assert_same(
        "/what" in "".join(written), True, because=f"an unknown command is named; got {written}"
    )
    assert_same(model.call_count, 0, because="neither commands nor blank lines are for the model")

    repl.run(["/help", "/what is it", "hello", "  /exit \n", "not any more"])
    assert_same(
        model.call_count, 1, because="after /help the REPL goes on; after /exit no line is taken"
    )


class TerminalOnly:
    """A model whose streams have one event, the terminal one: the shortest streams there are."""

    def __init__(self, *replies: AssistantMessage) -> None:
        self._replies = list(replies)

    def stream(self, context: AgentContext, options: StreamOptions | None = None) -> ModelStream:
        async def produce(stream: ModelStream) -> None:
            reply = self._replies.pop(0) if self._replies else assistant_message([text("完成")])
            stream.push(DoneEvent("toolUse" if tool_calls(reply) else "stop", reply))

        return EventStream(final_message, produce)


def told(event: AgentEvent) -> str:
    """An event in a few words."""
    match event:
        case MessageStartEvent(role=role):
            return f"{event.type} {role}"
        case MessageUpdateEvent(event=inner):
            return f"{event.type} {inner.type}"
        case MessageEndEvent(message=message):
            return f"{event.type} {message.role}"
        case ToolExecutionStartEvent(tool_call=call) | ToolExecutionEndEvent(tool_call=call):
            return f"{event.type} {call.id}"
        case TurnEndEvent(tool_results=results):
            return " ".join((event.type, *(result.tool_call_id for result in results)))
        case AgentEndEvent(reason=reason):
            return f"{event.type} {reason}"
        case _:
            return event.type


def scripted(
    *replies: Any,
    chunk_size: int = 100,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> ScriptedModel:
    return ScriptedModel(replies, chunk_size=chunk_size, sleep=sleep, clock=one)


def registry(**tools: Any) -> ToolRegistry:
    """Tools that take a `path`, by name."""
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    }
    return ToolRegistry(
        Tool(ToolDefinition(name, f"What {name} does.", schema), execute)
        for name, execute in tools.items()
    )


def answering(answer: str) -> Any:
    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        return answer

    return execute


def noting(ran: list[str]) -> Any:
    """A tool that notes each path it was run with."""

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        ran.append(arguments["path"])
        return "it ran"

    return execute


def one() -> int:
    return 1


async def all_of(stream: AgentStream) -> list[AgentEvent]:
    async with stream:
        return await collect(stream)


async def result_of(stream: AgentStream) -> AgentEndEvent:
    async with stream:
        return await stream.result()


def answers(messages: Iterable[AgentMessage]) -> list[tuple[str, bool]]:
    """Every tool result: the call's id, and whether it is an error."""
    return [
        (message.tool_call_id, message.is_error)
        for message in messages
        if isinstance(message, ToolResultMessage)
    ]


def open_ids(messages: Iterable[AgentMessage]) -> list[str]:
    return [call.id for call in unanswered_calls(messages)]


async def a_long_time() -> None:
    """Longer than any test waits, and yet it ends: a test that fails should not hang."""
    for _ in range(2000):
        await asyncio.sleep(0)


