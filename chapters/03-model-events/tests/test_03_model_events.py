"""Chapter 03: what a model tells while it answers."""

from collections.abc import Awaitable, Callable
from typing import Literal

from grader.testing import assert_same, collect, fail, run
from mini_agent.abort import AbortError, AbortSignal
from mini_agent.event_stream import EventStream
from mini_agent.events import (
    DoneEvent,
    ErrorEvent,
    ModelEvent,
    StartEvent,
    TextDeltaEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    final_message,
)
from mini_agent.model import ModelError, ModelStream
from mini_agent.render import Renderer, visible
from mini_agent.reply import Reply, parse_arguments, reply_stream
from mini_agent.types import (
    AssistantMessage,
    ContentBlock,
    StopReason,
    ToolCall,
    Usage,
    assistant_message,
    text,
)


def message(
    *content: ContentBlock,
    stop_reason: StopReason,
    error_message: str | None = None,
    input: int = 0,
) -> AssistantMessage:
    """The message that a reply of these tests ends in."""
    return assistant_message(
        content,
        stop_reason,
        provider="test",
        model="test-model",
        usage=Usage(input=input),
        timestamp=1,
        error_message=error_message,
    )


def filled_by(fill: Callable[[Reply], Awaitable[None]]) -> ModelStream:
    """The stream of a reply that `fill` fills, without the help of `reply_stream`."""

    async def produce(stream: ModelStream) -> None:
        await fill(Reply(stream, provider="test", model="test-model", timestamp=1))

    return EventStream(final_message, produce)


def told(fill: Callable[[Reply], Awaitable[None]]) -> list[ModelEvent]:
    """All events of that stream."""
    return run(collect(filled_by(fill)))


def told_by_stream(
    answer: Callable[[Reply], Awaitable[None]], signal: AbortSignal | None = None
) -> tuple[list[ModelEvent], AssistantMessage]:
    """All events of a `reply_stream`, and its result."""

    async def both() -> tuple[list[ModelEvent], AssistantMessage]:
        stream = reply_stream(
            answer, provider="test", model="test-model", signal=signal, clock=lambda: 1
        )
        return await collect(stream), await stream.result()

    return run(both())


# 3.1 The terminal events


def test_events_only_done_and_error_carry_the_final_message() -> None:
    """`done` and `error` end a stream, and nothing else does (step 3.1)."""
    call = ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}')
    whole = message(call, stop_reason="toolUse")
    broken = message(stop_reason="aborted", error_message="Operation aborted")

    events: list[ModelEvent] = [
        StartEvent(()),
        TextDeltaEvent(0, "正在", (text("正在"),)),
        ToolCallDeltaEvent(0, '{"path":', (call,)),
        ToolCallEndEvent(0, call, (call,)),
        DoneEvent("toolUse", whole),
        ErrorEvent("aborted", broken),
    ]

    assert_same(
        [event.type for event in events],
        ["start", "text_delta", "toolcall_delta", "toolcall_end", "done", "error"],
        because="the six names are the protocol's own; they are given, and stay as they are",
    )
    assert_same(
        [final_message(event) for event in events],
        [None, None, None, None, whole, broken],
        because="the message of `done` and of `error` is the stream's result; "
        "for every other event the answer is None",
    )


# 3.2 A reply that grows


def test_reply_text_deltas_carry_all_the_text_so_far() -> None:
    """A `partial` is the content at that moment, and the next piece waits for it (step 3.2)."""
    log: list[str] = []

    async def fill(reply: Reply) -> None:
        index = await reply.open_text()
        for piece in ("正在", "读取"):
            log.append(f"make {piece}")
            await reply.add_text(index, piece)
        await reply.done("stop")

    async def read() -> list[ModelEvent]:
        events: list[ModelEvent] = []
        async for event in filled_by(fill):
            events.append(event)
            log.append(f"read {event.type}")
        return events

    assert_same(
        run(read()),
        [
            StartEvent(()),
            TextDeltaEvent(0, "正在", (text("正在"),)),
            TextDeltaEvent(0, "读取", (text("正在读取"),)),
            DoneEvent("stop", message(text("正在读取"), stop_reason="stop")),
        ],
        because="a partial holds the whole content up to its own event: no less, and nothing later",
    )
    assert_same(
        log,
        ["read start", "make 正在", "read text_delta", "make 读取", "read text_delta", "read done"],
        because="send() waits until its event was taken, so that nothing piles up; "
        "push() does not wait, and is right for the last event only",
    )


def test_reply_start_is_told_once_even_if_nothing_else_comes() -> None:
    """`start` comes before everything but a failure, and comes once (step 3.2)."""

    async def empty(reply: Reply) -> None:
        reply.usage = Usage(input=3)
        await reply.done("stop")

    async def two_blocks(reply: Reply) -> None:
        await reply.start()
        for piece in ("一", "二"):
            await reply.add_text(await reply.open_text(), piece)
        await reply.done("length")

    assert_same(
        told(empty),
        [
            StartEvent(()),
            DoneEvent("stop", message(stop_reason="stop", input=3)),
        ],
        because="a reply without a single block has begun too: `start`, then `done`",
    )
    assert_same(
        told(two_blocks),
        [
            StartEvent(()),
            TextDeltaEvent(0, "一", (text("一"),)),
            TextDeltaEvent(1, "二", (text("一"), text("二"))),
            DoneEvent("length", message(text("一"), text("二"), stop_reason="length")),
        ],
        because="a second block, and a second call of start(), tell no second `start`",
    )


# 3.3 Tool calls in fragments


def test_call_fragments_become_arguments_only_at_the_end() -> None:
    """A call has raw text while it arrives, and arguments once it is complete (step 3.3)."""

    async def fill(reply: Reply) -> None:
        index = await reply.open_tool_call("call-1", "read")
        await reply.add_arguments(index, '{"path":')
        await reply.add_arguments(index, '"README.md"}')
        await reply.end_tool_call(index)
        await reply.done("toolUse")

    first = ToolCall("call-1", "read", None, '{"path":')
    second = ToolCall("call-1", "read", None, '{"path":"README.md"}')
    whole = ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}')
    assert_same(
        told(fill),
        [
            StartEvent(()),
            ToolCallDeltaEvent(0, '{"path":', (first,)),
            ToolCallDeltaEvent(0, '"README.md"}', (second,)),
            ToolCallEndEvent(0, whole, (whole,)),
            DoneEvent("toolUse", message(whole, stop_reason="toolUse")),
        ],
        because="half a JSON text is no JSON: a fragment is kept as it came, and parsed at the end",
    )


def test_call_and_text_interleaved_keep_their_places() -> None:
    """A block stays where it was opened, whoever grows in between (step 3.3)."""

    async def fill(reply: Reply) -> None:
        call = await reply.open_tool_call("call-1", "read")
        await reply.add_arguments(call, '{"path":')
        words = await reply.open_text()
        await reply.add_text(words, "先读")
        await reply.add_arguments(call, '"README.md"}')
        await reply.add_text(words, "，再查")
        await reply.end_tool_call(call)
        await reply.done("toolUse")

    first = ToolCall("call-1", "read", None, '{"path":')
    second = ToolCall("call-1", "read", None, '{"path":"README.md"}')
    whole = ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}')
    assert_same(
        told(fill),
        [
            StartEvent(()),
            ToolCallDeltaEvent(0, '{"path":', (first,)),
            TextDeltaEvent(1, "先读", (first, text("先读"))),
            ToolCallDeltaEvent(0, '"README.md"}', (second, text("先读"))),
            TextDeltaEvent(1, "，再查", (second, text("先读，再查"))),
            ToolCallEndEvent(0, whole, (whole, text("先读，再查"))),
            DoneEvent("toolUse", message(whole, text("先读，再查"), stop_reason="toolUse")),
        ],
        because="content_index is the block's place in the content, and a place is never given up",
    )


def test_call_id_and_name_are_set_once() -> None:
    """A late id or name is filled in; what is set stays (step 3.3)."""

    async def fill(reply: Reply) -> None:
        index = await reply.open_tool_call()
        reply.name_tool_call(index, "call-1", None)
        reply.name_tool_call(index, "", "read")
        reply.name_tool_call(index, None, "")
        reply.name_tool_call(index, "call-9", "write")
        await reply.add_arguments(index, "{}")
        await reply.done("length")

    named = ToolCall("call-1", "read", None, "{}")
    assert_same(
        told(fill),
        [
            StartEvent(()),
            ToolCallDeltaEvent(0, "{}", (named,)),
            DoneEvent("length", message(named, stop_reason="length")),
        ],
        because="the first id and the first name that are not empty stay: "
        "a later one, or an empty one, changes nothing",
    )


def test_call_arguments_are_one_json_object_or_an_error() -> None:
    """No text means no arguments; anything but a JSON object is a ModelError (step 3.3)."""
    assert_same(
        [parse_arguments(ToolCall("call-1", "now", None, raw)) for raw in (None, "", " \n", "{}")],
        [{}, {}, {}, {}],
        because="a tool without arguments may come with no text at all: that is {}",
    )

    async def without_text(reply: Reply) -> None:
        await reply.end_tool_call(await reply.open_tool_call("call-1", "now"))
        await reply.done("toolUse")

    now = ToolCall("call-1", "now", {}, "")
    assert_same(
        told(without_text)[:2],
        [StartEvent(()), ToolCallEndEvent(0, now, (now,))],
        because="a call that ends without a fragment is complete: no text, and no arguments",
    )
    for raw in ('{"path":', "[1]", '"README.md"', "null", '{"size":NaN}'):
        try:
            found = parse_arguments(ToolCall("call-1", "read", None, raw))
        except ModelError as error:
            parts = [part for part in ("call-1", "read", raw) if part not in str(error)]
            assert_same(parts, [], because="the error names the call's id, its name and the text")
        else:
            fail(f"{raw} is not a JSON object, but parse_arguments() returned {found!r}")


# 3.4 One ending


def test_ending_failure_is_an_event_that_keeps_the_content() -> None:
    """Whatever the model's code raises becomes one `error` event (step 3.4)."""

    async def breaks_off(reply: Reply) -> None:
        index = await reply.open_text()
        await reply.add_text(index, "正在")
        raise ConnectionError("connection lost")

    async def never_begins(reply: Reply) -> None:
        raise ModelError("no such model")

    async def says_nothing(reply: Reply) -> None:
        raise TimeoutError

    kept = message(text("正在"), stop_reason="error", error_message="connection lost")
    events, result = told_by_stream(breaks_off)
    assert_same(
        [*events, result],
        [
            StartEvent(()),
            TextDeltaEvent(0, "正在", (text("正在"),)),
            ErrorEvent("error", kept),
            kept,
        ],
        because="a failure is told as the last event; its message keeps what had arrived, "
        "and is the stream's result",
    )

    events, _ = told_by_stream(never_begins)
    assert_same(
        events,
        [ErrorEvent("error", message(stop_reason="error", error_message="no such model"))],
        because="a failure before the first piece is a lone `error`: no reply had started",
    )

    _, result = told_by_stream(says_nothing)
    assert_same(
        result.error_message,
        "TimeoutError",
        because="an exception without a text of its own is told by the name of its class",
    )


def test_ending_is_never_missing_and_never_double() -> None:
    """A stream has one terminal event, whatever the model's code does (step 3.4)."""

    async def forgets(reply: Reply) -> None:
        await reply.start()

    async def goes_on(reply: Reply) -> None:
        await reply.done("stop")
        reply.fail("error", "too late")
        raise RuntimeError("later still")

    events, result = told_by_stream(forgets)
    assert_same(
        [event.type for event in events],
        ["start", "error"],
        because="code that returns without done() has not finished: its reader must be told",
    )
    assert_same(
        result.error_message in (None, "", "None"), False, because="an error says what is wrong"
    )

    events, result = told_by_stream(goes_on)
    whole = message(stop_reason="stop")
    assert_same(
        [*events, result],
        [StartEvent(()), DoneEvent("stop", whole), whole],
        because="the first terminal event is the last event: what follows it is dropped",
    )


def test_ending_by_an_abort_is_aborted() -> None:
    """An abort is no error: reason "aborted", content kept; too early, and nothing runs (3.4)."""
    signal = AbortSignal()
    ran: list[Literal["first", "second"]] = []

    async def is_stopped(reply: Reply) -> None:
        ran.append("first")
        index = await reply.open_text()
        await reply.add_text(index, "正在")
        signal.abort("the user pressed Ctrl+C")
        raise ConnectionError("the response was closed")  # what a client does when it is stopped

    async def is_too_late(reply: Reply) -> None:
        ran.append("second")
        await reply.done("stop")

    async def has_a_signal_of_its_own(reply: Reply) -> None:
        raise AbortError("stopped elsewhere")

    events, result = told_by_stream(is_stopped, signal)
    assert_same(
        [(event.type, getattr(event, "reason", None)) for event in events],
        [("start", None), ("text_delta", None), ("error", "aborted")],
        because="if the signal is aborted when the code fails, the reason is `aborted`, "
        "whatever the exception was",
    )
    assert_same(result.content, (text("正在"),), because="an abort keeps what had arrived")
    assert_same(result.stop_reason, "aborted", because="the message says what the event says")

    events, _ = told_by_stream(is_too_late, signal)
    stopped = message(stop_reason="aborted", error_message="the user pressed Ctrl+C")
    assert_same(
        events,
        [ErrorEvent("aborted", stopped)],
        because="a signal that is aborted beforehand leaves one event, with the signal's reason",
    )
    assert_same(ran, ["first"], because="what is aborted beforehand is not begun")

    elsewhere = message(stop_reason="aborted", error_message="stopped elsewhere")
    for given in (None, AbortSignal()):
        events, _ = told_by_stream(has_a_signal_of_its_own, given)
        assert_same(
            events,
            [ErrorEvent("aborted", elsewhere)],
            because="an AbortError is an abort, also where this signal is not the aborted one",
        )


# 3.5 In the terminal


def test_render_shows_text_as_it_comes_and_a_notice_on_its_own_line() -> None:
    """Text flows; a call, a failure and a cut are whole lines (step 3.5)."""
    call = ToolCall("call-1", "read", {"path": "说明.md"}, '{"path":\n"说明.md"}')
    renderer = Renderer()

    def show(*events: ModelEvent) -> list[str]:
        return [renderer.render(event) for event in events]

    assert_same(
        show(
            StartEvent(()),
            TextDeltaEvent(0, "正在", ()),
            TextDeltaEvent(0, "读取", ()),
            ToolCallDeltaEvent(1, '{"path":\n"说明.md"}', ()),
            ToolCallEndEvent(1, call, ()),
            DoneEvent("toolUse", message(stop_reason="toolUse")),
        ),
        ["", "正在", "读取", "", '\n[tool call] read {"path":"说明.md"}\n', ""],
        because="text is written at once; a call is one line of its own, "
        "whatever line breaks its raw text has",
    )
    assert_same(
        show(TextDeltaEvent(0, "好\n", ()), DoneEvent("stop", message(stop_reason="stop")))
        + show(TextDeltaEvent(0, "好", ()), DoneEvent("stop", message(stop_reason="stop"))),
        ["好\n", "", "好", "\n"],
        because="at its end a reply leaves no line open, and adds no empty line",
    )
    lost = message(stop_reason="error", error_message="connection lost\n[tool call] rm {}")
    assert_same(
        show(TextDeltaEvent(0, "好", ()), ErrorEvent("error", lost)),
        ["好", "\n[error] connection lost\\n[tool call] rm {}\n"],
        because="a failure is one line, so that its text can't pass for another notice",
    )
    stopped = message(stop_reason="aborted", error_message="Operation aborted")
    assert_same(
        show(ErrorEvent("aborted", stopped)),
        ["[aborted] Operation aborted\n"],
        because="the line says whether the reply failed or was stopped",
    )
    cut = "".join(show(TextDeltaEvent(0, "好", ()), DoneEvent("length", lost)))
    assert_same(
        [len(cut.splitlines()), cut.startswith("好\n["), cut.endswith("\n")],
        [2, True, True],
        because="a reply that hit the length limit looks complete: a notice must say it is not",
    )


def test_render_spells_out_what_a_terminal_would_obey() -> None:
    """No control character of a model reaches the terminal (step 3.5)."""
    assert_same(
        visible("a\x1b[2Jb\x9b2J\x07\x08\r\x7f"),
        "a\\x1b[2Jb\\x9b2J\\x07\\x08\\r\\x7f",
        because="ESC, the one-character CSI, BEL, backspace, CR and DEL are commands: each is "
        "spelt out as in a Python string",
    )
    assert_same(
        visible("\u202etxt\u2028\u2029\ud800\U000e0041"),
        "\\u202etxt\\u2028\\u2029\\ud800\\U000e0041",
        because="a turn of the writing direction, two line separators, a lone surrogate, an "
        "invisible tag: they are no control characters, and are spelt out all the same",
    )
    plain = "正在读取：\tREADME.md　👩\u200d👩\u200d👧 naïve \\x1b\n"
    assert_same(visible(plain), plain, because="text, newline, tab and emoji stay as they are")

    renderer = Renderer()
    call = ToolCall("call-1", "read\x1b[8m", {"path": "\u202etxt.\x1b"}, "")
    shown = [
        renderer.render(TextDeltaEvent(0, "\x1b", ())),
        renderer.render(TextDeltaEvent(0, "]0;pwned\x07", ())),
        renderer.render(ToolCallEndEvent(1, call, ())),
        renderer.render(
            ErrorEvent("error", message(stop_reason="error", error_message="\x1b[31mred"))
        ),
    ]
    assert_same(
        [sorted(set(part) & set("\x1b\x07\u202e")) for part in shown],
        [[], [], [], []],
        because="text, tool names, arguments and error messages all come from outside",
    )
