"""Chapter 03, beyond the focused tests: any text, any cut, any order of failures."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from grader.testing import assert_same, collect, fail, run
from mini_agent.abort import AbortSignal
from mini_agent.events import DoneEvent, ErrorEvent, ModelEvent, TextDeltaEvent, ToolCallEndEvent
from mini_agent.model import ModelError
from mini_agent.render import Renderer, visible
from mini_agent.reply import Reply, parse_arguments, reply_stream
from mini_agent.types import ContentBlock, TextContent, ToolCall, assistant_message, text

repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=60)

# Every character, lone surrogates and controls included: a model may send any of them.
anything = st.text(st.characters(exclude_categories=()))


@repeatable
@given(st.lists(anything, max_size=8))
def test_text_partials_are_what_was_told_so_far(deltas: list[str]) -> None:
    """Whatever the cuts, deltas join to the message, and no kept partial ever changes."""

    async def answer(reply: Reply) -> None:
        index = await reply.open_text()
        for delta in deltas:
            await reply.add_text(index, delta)
        await reply.done("stop")

    events = [event for event in told(answer) if isinstance(event, TextDeltaEvent)]
    assert_same(
        [event.partial for event in events],
        [(text("".join(deltas[: n + 1])),) for n in range(len(deltas))],
        because="the n-th partial is the first n deltas, joined, and still is at the end",
    )


@repeatable
@given(st.lists(st.tuples(st.integers(0, 3), anything), max_size=12))
def test_blocks_any_interleaving_gives_each_block_its_own_text(
    steps: list[tuple[int, str]],
) -> None:
    """Four blocks, two of them calls, grow in any order: none takes what is another's."""

    async def answer(reply: Reply) -> None:
        places: dict[int, int] = {}
        for which, delta in steps:
            if which not in places:
                places[which] = await (reply.open_text() if which < 2 else reply.open_tool_call())
            add = reply.add_text if which < 2 else reply.add_arguments
            await add(places[which], delta)
        await reply.done("length")

    order = list(dict.fromkeys(which for which, _ in steps))
    whole = {which: "".join(d for w, d in steps if w == which) for which in order}
    expected: list[ContentBlock] = [
        TextContent(whole[which]) if which < 2 else ToolCall("", "", None, whole[which])
        for which in order
    ]
    last = told(answer)[-1]
    assert isinstance(last, DoneEvent)
    assert_same(list(last.message.content), expected, because="blocks stand as they were opened")


moves = st.lists(
    st.sampled_from(["text", "call", "end", "done", "fail", "abort", "raise", "return"]), max_size=7
)


@repeatable
@given(moves, st.booleans())
def test_ending_is_one_whatever_the_answer_does(script: list[str], aborted: bool) -> None:
    """Any order of pieces, ends, aborts and exceptions tells one terminal event, the last."""
    signal = AbortSignal()
    if aborted:
        signal.abort()

    async def answer(reply: Reply) -> None:
        for move in script:
            match move:
                case "text":
                    await reply.add_text(await reply.open_text(), "好")
                case "call":
                    await reply.add_arguments(await reply.open_tool_call("call-1", "read"), "{}")
                case "end":
                    await reply.end_tool_call(len(reply.content) - 1)  # may be no call at all
                case "done":
                    await reply.done("stop")
                case "fail":
                    reply.fail("error", "failed")
                case "abort":
                    signal.abort()
                case "raise":
                    raise ConnectionError("connection lost")
                case "return":
                    return

    events = told(answer, signal)
    assert_same(
        [isinstance(event, DoneEvent | ErrorEvent) for event in events],
        [False] * (len(events) - 1) + [True],
        because=f"the answer did {script}; signal aborted beforehand: {aborted}",
    )
    starts = [at for at, event in enumerate(events) if event.type == "start"]
    assert_same(
        starts,
        [] if len(events) == 1 else [0],
        because="a reply starts once and first, unless it failed before it began",
    )


def test_ending_a_cancelled_reader_leaves_nothing_behind() -> None:
    """A reader that is cancelled is not told an `error`: cancellation is the event loop's own."""

    async def scenario() -> bool:
        released = asyncio.Event()

        async def answer(reply: Reply) -> None:
            try:
                await reply.add_text(await reply.open_text(), "正在")
                await asyncio.Event().wait()
            finally:
                released.set()

        async with reply_stream(answer, provider="test", model="test-model") as stream:
            await anext(stream)
            await anext(stream)
        return released.is_set()

    assert_same(run(scenario()), True, because="who leaves early has the model clean up at once")


def test_reply_a_model_runs_at_its_readers_pace() -> None:
    """A piece is made when the one before it was taken: nothing piles up."""

    async def scenario() -> int:
        made = 0

        async def answer(reply: Reply) -> None:
            nonlocal made
            index = await reply.open_text()
            for _ in range(1000):
                made += 1
                await reply.add_text(index, "好")
            await reply.done("stop")

        async with reply_stream(answer, provider="test", model="test-model") as stream:
            for _ in range(3):
                await anext(stream)
            for _ in range(20):
                await asyncio.sleep(0)
        return made

    made = run(scenario())
    assert_same(made <= 4, True, because=f"three events were read, and {made} pieces were made")


@repeatable
@given(st.recursive(st.none() | st.booleans() | anything, lambda inner: st.lists(inner)))
def test_call_only_objects_are_arguments(value: object) -> None:
    """No JSON value but an object passes, and what is refused names the call."""
    raw = json.dumps(value)
    try:
        found = parse_arguments(ToolCall("call-1", "read", None, raw))
    except ModelError as error:
        assert_same("call-1" in str(error), True, because="the error names the call")
    else:
        fail(f"{raw} became {found!r}")


def test_call_a_number_without_end_is_an_error() -> None:
    """1e999 is JSON, but as a float it is infinity, and nothing could write it again."""
    for raw in ('{"size":1e999}', '{"sizes":[0.5,-1e999]}'):
        try:
            found = parse_arguments(ToolCall("call-1", "read", None, raw))
        except ModelError:
            continue
        fail(f"parse_arguments() made {found!r} of {raw}, which is no JSON any more")
    assert_same(
        parse_arguments(ToolCall("call-1", "read", None, '{"size":1e3}')),
        {"size": 1000.0},
        because="an ordinary number is what it says",
    )


def test_call_a_thousand_brackets_are_an_error_and_no_crash() -> None:
    """JSON nested deeper than Python's stack is refused like any other bad text."""
    raw = '{"a":' * (sys.getrecursionlimit() * 50)
    try:
        parse_arguments(ToolCall("call-1", "read", None, raw))
    except ModelError:
        return
    fail("the text was accepted")


@repeatable
@given(anything, anything)
def test_render_a_cut_changes_nothing_and_every_character_can_be_printed(
    left: str, right: str
) -> None:
    """Spelling out works character by character, so a stream may cut a sequence anywhere."""
    assert_same(
        visible(left) + visible(right), visible(left + right), because="a cut is no context"
    )
    shown = visible(left)
    shown.encode("utf-8")  # a lone surrogate would raise here, as print() would
    unsafe = [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
    assert_same(unsafe, [], because="a control character reached the terminal")


@repeatable
@given(st.lists(anything, max_size=5), anything, anything)
def test_render_a_notice_is_one_line_after_any_text(
    deltas: list[str], name: str, problem: str
) -> None:
    """No text, tool name or error message can break a notice in two, or fake one."""
    renderer = Renderer()
    call = ToolCall("call-1", name, {name: problem}, "{}")
    failed = assistant_message((), "error", error_message=problem)
    before = "".join(renderer.render(TextDeltaEvent(0, delta, ())) for delta in deltas)
    notices = shown_by(renderer, [ToolCallEndEvent(1, call, ()), ErrorEvent("error", failed)])

    joint = "" if not before or before.endswith("\n") else "\n"
    assert_same(
        [notices.startswith(f"{joint}[tool call] "), notices.count("\n")],
        [True, 2 + len(joint)],
        because="two notices are two lines, and the first one starts a line",
    )


def told(
    answer: Callable[[Reply], Awaitable[None]], signal: AbortSignal | None = None
) -> list[ModelEvent]:
    """All events of `answer`."""
    stream = reply_stream(answer, provider="test", model="test-model", signal=signal)
    return run(collect(stream))


def shown_by(renderer: Renderer, events: Sequence[ModelEvent]) -> str:
    """What `renderer` writes for `events`."""
    return "".join(renderer.render(event) for event in events)
