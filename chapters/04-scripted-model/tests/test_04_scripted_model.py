"""Chapter 04: a model that follows a script."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from grader.testing import assert_same, collect, run, soon
from mini_agent.abort import AbortSignal
from mini_agent.events import (
    DoneEvent,
    ErrorEvent,
    ModelEvent,
    StartEvent,
    TextDeltaEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
)
from mini_agent.model import Model, StreamOptions
from mini_agent.scripted_model import (
    Rule,
    ScriptedModel,
    ScriptedReply,
    on_tool_result,
    on_user,
    tool_call,
)
from mini_agent.types import (
    AgentContext,
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    StopReason,
    ToolCall,
    ToolResultMessage,
    Usage,
    assistant_message,
    text,
    text_of,
    user_message,
)

QUESTION = user_message("读取 README.md", 1)  # 12 characters: 3 tokens of a prompt
CONTEXT = AgentContext((QUESTION,))
RAW = '{"path":"README.md"}'
READ = ToolCall("call-1", "read", {"path": "README.md"}, RAW)


def scripted(
    *replies: ScriptedReply, chunk_size: int = 8, rules: Sequence[Rule] = ()
) -> ScriptedModel:
    """A model with a stopped clock that does not sleep."""
    return ScriptedModel(
        replies, rules=rules, chunk_size=chunk_size, sleep=at_once, clock=lambda: 1
    )


async def at_once(seconds: float) -> None:
    """A sleep that takes no time."""


def message(
    *content: ContentBlock,
    stop_reason: StopReason = "stop",
    input: int = 3,
    output: int = 0,
    error_message: str | None = None,
) -> AssistantMessage:
    """What a scripted reply ends in: everything stated."""
    return assistant_message(
        content,
        stop_reason,
        provider="scripted",
        model="scripted",
        usage=Usage(input=input, output=output),
        timestamp=1,
        error_message=error_message,
    )


def answers(model: Model, *contexts: AgentContext) -> list[str]:
    """The text of one reply for each context, or its error message."""

    async def ask() -> list[str]:
        results = [await model.stream(context).result() for context in contexts]
        return [result.error_message or text_of(result) for result in results]

    return run(ask())


def events_of(model: Model, signal: AbortSignal | None = None) -> list[ModelEvent]:
    """All events of one reply to `CONTEXT`."""
    return run(collect(model.stream(CONTEXT, StreamOptions(signal))))


def free_of_charge(events: list[ModelEvent]) -> list[ModelEvent]:
    """The events without token counts, which come in step 4.2."""
    return [
        DoneEvent(event.reason, replace(event.message, usage=Usage()))
        if isinstance(event, DoneEvent)
        else event
        for event in events
    ]


# 4.1 A queue of replies


def test_queue_gives_each_call_the_next_reply_and_then_an_error() -> None:
    """The n-th call takes the n-th reply; after the last one comes an error event (step 4.1)."""
    other = AgentContext((user_message("再来", 2),))
    model = scripted("一", [text("二")], assistant_message([text("三")], "length"))

    assert_same(
        answers(model, CONTEXT, other), ["一", "二"], because="each call takes one reply, in order"
    )
    model.enqueue("四")
    assert_same(model.pending, 2, because="the third reply waits, and the one that was added")
    assert_same(answers(model, CONTEXT, CONTEXT), ["三", "四"], because="the queue goes on")

    events = events_of(model)
    failure = events[-1]
    assert isinstance(failure, ErrorEvent)
    assert_same(
        [(event.type, failure.reason, failure.message.content) for event in events],
        [("error", "error", ())],
        because="an empty queue is a model that fails: one `error` event, and nothing is raised",
    )
    assert_same(
        (model.call_count, model.contexts),
        (5, (CONTEXT, other, CONTEXT, CONTEXT, CONTEXT)),
        because="every call is counted, and its context kept, whatever came of it",
    )


def test_queue_text_is_sent_in_pieces_of_one_size() -> None:
    """`chunk_size` characters at a time, the rest last; an empty text has no piece (step 4.1)."""
    assert_same(
        free_of_charge(events_of(scripted("正在读取", chunk_size=3))),
        [
            StartEvent(()),
            TextDeltaEvent(0, "正在读", (text("正在读"),)),
            TextDeltaEvent(0, "取", (text("正在读取"),)),
            DoneEvent("stop", message(text("正在读取"), input=0)),
        ],
        because="four characters in pieces of three: three, and the one that is left",
    )
    assert_same(
        free_of_charge(events_of(scripted([text(""), text("好")], chunk_size=3))),
        [
            StartEvent(()),
            TextDeltaEvent(1, "好", (text(""), text("好"))),
            DoneEvent("stop", message(text(""), text("好"), input=0)),
        ],
        because="an empty text keeps its place in the content, and has nothing to send",
    )
    assert_same(
        free_of_charge(events_of(scripted([]))),
        [StartEvent(()), DoneEvent("stop", message(input=0))],
        because="a reply may be empty",
    )


# 4.2 Tool calls, and what a reply costs


def test_call_follows_the_text_event_by_event() -> None:
    """Text, then fragments, one end and `toolUse`; the script is not used up by it (step 4.2)."""
    script: list[ContentBlock] = [
        text("正在读取。"),
        tool_call("call-1", "read", {"path": "README.md"}),
    ]

    def up_to(length: int) -> tuple[ContentBlock, ...]:
        return (text("正在读取。"), ToolCall("call-1", "read", None, RAW[:length]))

    whole = (text("正在读取。"), READ)
    expected = [
        StartEvent(()),
        TextDeltaEvent(0, "正在读取。", (text("正在读取。"),)),
        ToolCallDeltaEvent(1, '{"path":', up_to(8)),
        ToolCallDeltaEvent(1, '"README.', up_to(16)),
        ToolCallDeltaEvent(1, 'md"}', up_to(20)),
        ToolCallEndEvent(1, READ, whole),
        DoneEvent("toolUse", message(*whole, stop_reason="toolUse", output=7)),
    ]

    first = events_of(scripted(script))
    assert_same(first, expected, because="seven events in this order: the call ends before `done`")

    end = first[-2]
    assert isinstance(end, ToolCallEndEvent)
    assert end.tool_call.arguments is not None
    end.tool_call.arguments["path"] = "/etc/passwd"
    assert_same(
        events_of(scripted(script)),
        expected,
        because="a script can be used again, whatever a reader did to the arguments it was given",
    )
    assert_same(
        tool_call("call-1", "read", {"path": "说明.md", "lines": 3}).raw_arguments,
        '{"path":"说明.md","lines":3}',
        because="the JSON text is compact, and spells no Chinese character as six others",
    )


def test_call_that_is_cut_off_has_no_end() -> None:
    """A call without arguments in a `length` reply is sent as far as it goes (step 4.2)."""
    cut = ToolCall("call-1", "read", None, '{"path":')
    no_json = ToolCall("call-1", "read", None, '{"path":')
    bare = ToolCall("call-2", "now")
    now = ToolCall("call-2", "now", {}, "{}")

    assert_same(
        events_of(scripted(assistant_message([cut], "length"))),
        [
            StartEvent(()),
            ToolCallDeltaEvent(0, '{"path":', (cut,)),
            DoneEvent("length", message(cut, stop_reason="length", output=2)),
        ],
        because="what the limit cut off is kept as raw text, and no `toolcall_end` is told",
    )
    assert_same(
        [event.type for event in events_of(scripted([no_json]))],
        ["start", "toolcall_delta", "error"],
        because="where a reply says that its calls are complete, half a JSON text is an error",
    )
    assert_same(
        events_of(scripted([bare]))[1:3],
        [
            ToolCallDeltaEvent(0, "{}", (ToolCall("call-2", "now", None, "{}"),)),
            ToolCallEndEvent(0, now, (now,)),
        ],
        because="a call without arguments is sent as `{}`",
    )


def test_usage_is_a_quarter_of_the_characters() -> None:
    """A token for every four characters begun, of the prompt and of the reply (step 4.2)."""
    history: tuple[AgentMessage, ...] = (
        QUESTION,  # 12 characters
        assistant_message([READ], "toolUse"),  # 20
        ToolResultMessage("call-1", "read", (text("# Project"),)),  # 9
    )
    context = AgentContext(history, system_prompt="回答要简洁。")  # 6: together 47

    async def usage(reply: ScriptedReply) -> Usage:
        return (await scripted(reply).stream(context).result()).usage

    assert_same(
        [run(usage("正在读取。")), run(usage([READ])), run(usage(""))],
        [Usage(12, 2, 0, 0, 14), Usage(12, 5, 0, 0, 17), Usage(12, 0, 0, 0, 12)],
        because="47 characters are 12 tokens of input; 5 characters of text are 2 tokens of "
        "output, and 20 of arguments are 5",
    )


# 4.3 Replies made on demand


def test_factory_is_given_the_context_and_makes_the_reply() -> None:
    """A function stands for a reply, async or not; each call asks it anew (step 4.3)."""

    def echo(context: AgentContext) -> str:
        return f"你说：{text_of(context.messages[-1])}"

    async def count(context: AgentContext) -> AssistantMessage:
        await asyncio.sleep(0)
        return assistant_message([text(f"{len(context.messages)} message")], "length")

    assert_same(
        answers(scripted(echo, count), CONTEXT, CONTEXT),
        ["你说：读取 README.md", "1 message"],
        because="a factory gets the context of its own call, and its result is sent like any reply",
    )


def test_factory_that_fails_is_one_error_event() -> None:
    """A factory that raises fails its own reply and no other (step 4.3)."""

    def broken(context: AgentContext) -> str:
        raise LookupError("no such fixture")

    async def broken_later(context: AgentContext) -> str:
        await asyncio.sleep(0)
        raise LookupError("no such page")

    model = scripted(broken, broken_later, "好")
    failed = [
        message(stop_reason="error", input=0, error_message=f"no such {what}")
        for what in ("fixture", "page")
    ]
    assert_same(
        [events_of(model), events_of(model)],
        [[ErrorEvent("error", failed[0])], [ErrorEvent("error", failed[1])]],
        because="nothing had begun, so the error is the only event, and it costs no token",
    )
    assert_same(answers(model, CONTEXT), ["好"], because="the next call gets the next reply")


# 4.4 Delays and aborts


def test_delay_is_awaited_before_every_piece() -> None:
    """`sleep(delay)` is awaited once before each piece, of text and of arguments (step 4.4)."""
    log: list[str] = []

    async def sleep(seconds: float) -> None:
        log.append(f"sleep {seconds}")

    async def read() -> None:
        model = ScriptedModel([[text("好"), READ]], chunk_size=12, delay=0.25, sleep=sleep)
        async for event in model.stream(CONTEXT):
            log.append(event.type)

    run(read())
    assert_same(
        log,
        [
            "start",
            "sleep 0.25",
            "text_delta",
            "sleep 0.25",
            "toolcall_delta",
            "sleep 0.25",
            "toolcall_delta",
            "toolcall_end",
            "done",
        ],
        because="a piece takes its time to come; the ends of calls and replies come with it",
    )


def test_abort_ends_the_wait_and_keeps_what_was_sent() -> None:
    """An abort does not wait for the sleep to end, and the content stays (step 4.4)."""
    signal = AbortSignal()
    waits = 0

    async def sleep(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 2:
            asyncio.get_running_loop().call_soon(signal.abort, "the user pressed Ctrl+C")
            await asyncio.Event().wait()  # it would last for ever

    model = ScriptedModel(["正在读取"], chunk_size=2, sleep=sleep, clock=lambda: 1)
    stream = model.stream(CONTEXT, StreamOptions(signal))
    stopped = message(
        text("正在"), stop_reason="aborted", output=1, error_message="the user pressed Ctrl+C"
    )
    assert_same(
        run(soon(collect(stream), because="the abort must end the sleep")),
        [
            StartEvent(()),
            TextDeltaEvent(0, "正在", (text("正在"),)),
            ErrorEvent("aborted", stopped),
        ],
        because="two characters were sent, are kept, and are paid for; then comes one `aborted`",
    )


def test_abort_is_looked_for_before_each_block_and_after_each_wait() -> None:
    """Code that does not wait is stopped as well, at the next look (step 4.4)."""
    before, within = AbortSignal(), AbortSignal()
    slept: list[float] = []

    def aborts(context: AgentContext) -> str:
        before.abort()
        return "正在读取"

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            within.abort()  # and it returns at once

    model = ScriptedModel([aborts, "正在读取", "好"], chunk_size=2, sleep=sleep, clock=lambda: 1)
    assert_same(
        [event.type for event in events_of(model, before)],
        ["error"],
        because="an abort before the first block leaves nothing to start",
    )
    assert_same(
        [event.type for event in events_of(model, within)],
        ["start", "text_delta", "error"],
        because="an abort during the second wait is seen before the second piece is sent",
    )
    slept.clear()
    nothing = message(stop_reason="aborted", input=0, error_message="Operation aborted")
    assert_same(
        events_of(model, before),
        [ErrorEvent("aborted", nothing)],
        because="a signal that is aborted beforehand leaves one event, no `start`, and no costs",
    )
    assert_same(
        (slept, model.pending, model.call_count),
        ([], 0, 3),
        because="it slept for nothing, and each call has taken its reply",
    )


# 4.5 Rules


def test_rules_answer_in_order_once_the_queue_is_empty() -> None:
    """The first rule that has a reply gives it, as often as it is asked (step 4.5)."""
    asked: list[str] = []

    def greeting(context: AgentContext) -> str | None:
        asked.append("greeting")
        return "你好！" if "你好" in text_of(context.messages[-1]) else None

    def anything(context: AgentContext) -> list[ContentBlock]:
        asked.append("anything")
        return [text("没听懂。")]

    hello, other = (AgentContext((user_message(said, 1),)) for said in ("你好", "天气"))
    model = scripted("队列", rules=[greeting, anything])
    assert_same(
        answers(model, hello, hello, other, hello),
        ["队列", "你好！", "没听懂。", "你好！"],
        because="the queue goes first; then every call goes through the rules from the top",
    )
    assert_same(
        asked,
        ["greeting", "greeting", "anything", "greeting"],
        because="no rule is asked before its turn, nor after one that had a reply",
    )

    events = events_of(scripted(rules=[greeting]))
    assert_same(
        [event.type for event in events],
        ["error"],
        because="a context that no rule answers is a model that fails: one `error` event",
    )


def test_rules_for_a_user_and_for_a_tool_result_look_at_the_last_message() -> None:
    """`on_user` gets the match, `on_tool_result` the message, and only if it is last (4.5)."""
    rules = [
        on_user(r"^读取 (\S+)$", lambda match: [tool_call("call-1", "read", {"path": match[1]})]),
        on_tool_result(lambda result: f"{result.tool_name}: {text_of(result)}"),
        on_user("", lambda match: lambda context: f"{len(context.messages)} messages"),
    ]
    result = ToolResultMessage("call-1", "read", (text("# Project"),))
    called = assistant_message([READ], "toolUse")
    thanks = user_message("谢谢", 2)

    async def replies() -> list[AssistantMessage]:
        model = scripted(rules=rules, chunk_size=100)
        return [
            await model.stream(AgentContext(messages)).result()
            for messages in (
                (QUESTION,),
                (QUESTION, called, result),
                (QUESTION, called, result, thanks),
                (QUESTION, called),
                (),
            )
        ]

    found = run(replies())
    failures = [reply.error_message for reply in found[3:]]
    assert_same(
        [reply.error_message or text_of(reply) or reply.content for reply in found[:3]],
        [(READ,), "read: # Project", "4 messages"],
        because="a rule for the user fits when the user spoke last; the rule for a result, "
        "when a result is last; what is further back is history",
    )
    assert_same(
        [reply.stop_reason for reply in found],
        ["toolUse", "stop", "stop", "error", "error"],
        because="after an assistant message, or with no message at all, neither helper's rule fits",
    )
    assert_same(
        failures[1],
        failures[0],
        because="with no message at all there is no last one: no rule fits, and none breaks",
    )
