"""Chapter 04, beyond the focused tests: any script, any piece size, an abort at any moment."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from grader.testing import assert_same, collect, fail, run
from mini_agent.abort import AbortSignal
from mini_agent.events import (
    DoneEvent,
    ErrorEvent,
    ModelEvent,
    TextDeltaEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
)
from mini_agent.model import StreamOptions
from mini_agent.scripted_model import ScriptedModel, ScriptedReply, tool_call
from mini_agent.types import (
    AgentContext,
    ContentBlock,
    TextContent,
    ToolCall,
    Usage,
    assistant_message,
    text,
    text_of,
    user_message,
)

repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=60)

CONTEXT = AgentContext((user_message("读取 README.md", 1),))

texts = st.builds(text, st.text(max_size=12))
calls = st.builds(
    tool_call,
    st.sampled_from(["call-1", "call-2"]),
    st.just("read"),
    st.dictionaries(st.text(max_size=4), st.text(max_size=6) | st.integers(), max_size=2),
)
scripts: st.SearchStrategy[list[ContentBlock]] = st.lists(texts | calls, max_size=4)


async def at_once(seconds: float) -> None:
    """A sleep that takes no time."""


def written(blocks: list[ContentBlock]) -> list[str]:
    """The text or the JSON text of each block."""
    return [b.text if isinstance(b, TextContent) else b.raw_arguments or "" for b in blocks]


@repeatable
@given(scripts, st.integers(1, 15))
def test_pieces_join_to_the_script(blocks: list[ContentBlock], size: int) -> None:
    """For any script and any piece size, the deltas of each block join to that block."""
    model = ScriptedModel([blocks], chunk_size=size, sleep=at_once)
    events = run(collect(model.stream(CONTEXT)))

    joined = [""] * len(blocks)
    lengths: list[int] = []
    for event in events:
        if isinstance(event, TextDeltaEvent | ToolCallDeltaEvent):
            joined[event.content_index] += event.delta
            lengths.append(len(event.delta))
            told = event.partial[event.content_index]
            assert_same(
                written([told]),
                [joined[event.content_index]],
                because="a partial still holds what had been told at its own event",
            )
    assert_same(joined, written(blocks), because="nothing is lost, doubled or misplaced")
    assert_same(max(lengths, default=1) <= size, True, because="no piece is longer than asked")
    assert_same(
        [event.content_index for event in events if isinstance(event, ToolCallEndEvent)],
        [at for at, block in enumerate(blocks) if isinstance(block, ToolCall)],
        because="each call ends once, in its place",
    )

    last = events[-1]
    assert isinstance(last, DoneEvent)
    characters = sum(map(len, written(blocks)))
    assert_same(
        (list(last.message.content), last.message.usage),
        (blocks, Usage(input=3, output=(characters + 3) // 4)),
        because="the message is the script, and costs a quarter of its characters",
    )


@repeatable
@given(scripts, st.integers(1, 5), st.integers(0, 12), st.booleans())
def test_an_abort_at_any_moment_leaves_a_beginning_and_one_ending(
    blocks: list[ContentBlock], size: int, moment: int, by_reader: bool
) -> None:
    """The reader aborts between two events, or the network in a wait: one terminal event."""
    signal = AbortSignal()
    waits = 0

    async def sleep(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits > moment and not by_reader:
            signal.abort()

    async def scenario() -> list[ModelEvent]:
        events: list[ModelEvent] = []
        model = ScriptedModel([blocks], chunk_size=size, sleep=sleep)
        async for event in model.stream(CONTEXT, StreamOptions(signal)):
            events.append(event)
            if len(events) > moment and by_reader:
                signal.abort()
        return events

    events = run(scenario())
    assert_same(
        [isinstance(event, DoneEvent | ErrorEvent) for event in events],
        [False] * (len(events) - 1) + [True],
        because="there is one terminal event, and it is the last",
    )
    last = events[-1]
    assert isinstance(last, DoneEvent | ErrorEvent)
    kept = written(list(last.message.content))
    whole = written(blocks)
    assert_same(
        (kept[:-1], [whole[len(kept) - 1].startswith(kept[-1])] if kept else []),
        (whole[: max(len(kept) - 1, 0)], [True] if kept else []),
        because="what was kept is the beginning of the script, cut somewhere in its last block",
    )
    told = "".join(e.delta for e in events if isinstance(e, TextDeltaEvent | ToolCallDeltaEvent))
    assert_same("".join(kept), told, because="what was kept is what was told")


def test_an_abort_between_two_blocks_opens_no_second_one() -> None:
    """The reader aborts when the first block is complete: no empty second block is kept."""

    async def scenario() -> tuple[ContentBlock, ...]:
        signal = AbortSignal()
        script: list[ContentBlock] = [text("好"), tool_call("call-1", "read", {})]
        stream = ScriptedModel([script], sleep=at_once).stream(CONTEXT, StreamOptions(signal))
        async for event in stream:
            if isinstance(event, TextDeltaEvent):
                signal.abort()
        return (await stream.result()).content

    assert_same(run(scenario()), (text("好"),), because="a block that did not begin is not there")


def test_streams_opened_first_and_read_last_keep_their_replies() -> None:
    """A reply belongs to the call of stream(), not to the first one who reads."""

    async def scenario() -> list[str]:
        model = ScriptedModel(["一", "二", "三"], sleep=at_once)
        streams = [model.stream(CONTEXT) for _ in range(3)]
        backwards = [text_of(await stream.result()) for stream in reversed(streams)]
        return backwards[::-1]

    assert_same(run(scenario()), ["一", "二", "三"], because="the n-th call has the n-th reply")


def test_streams_read_side_by_side_do_not_mix() -> None:
    """What one reply has sent so far is no other reply's business."""

    async def scenario() -> list[str]:
        model = ScriptedModel(["一二三四五", "abcdefg"], chunk_size=1)
        streams = [model.stream(CONTEXT) for _ in range(2)]
        return [
            text_of(message) for message in await asyncio.gather(*(s.result() for s in streams))
        ]

    assert_same(run(scenario()), ["一二三四五", "abcdefg"], because="state lives in one stream")


def test_a_reader_who_leaves_early_leaves_nothing_behind() -> None:
    """Closing the stream ends a sleep that would last for ever."""

    async def scenario() -> str:
        async def sleep(seconds: float) -> None:
            await asyncio.Event().wait()

        async with ScriptedModel(["好"], sleep=sleep).stream(CONTEXT) as stream:
            return (await anext(stream)).type

    assert_same(run(scenario()), "start", because="run() fails if a task is left")


def test_a_scripted_failure_keeps_its_content_and_its_words() -> None:
    """A message that ends in "error" or "aborted" is played as such."""
    overloaded = assistant_message([text("正在")], "error", error_message="the model is overloaded")
    silent = assistant_message([], "aborted")

    async def scenario(reply: ScriptedReply) -> tuple[str, str, str, str | None]:
        stream = ScriptedModel([reply], sleep=at_once).stream(CONTEXT)
        types = " ".join([event.type async for event in stream])
        message = await stream.result()
        return types, message.stop_reason, text_of(message), message.error_message

    assert_same(
        [run(scenario(overloaded)), run(scenario(silent))[:3]],
        [
            ("start text_delta error", "error", "正在", "the model is overloaded"),
            ("error", "aborted", ""),
        ],
        because="a script can fail as a provider does",
    )
    assert_same(
        bool(run(scenario(silent))[3]), True, because="a failure without words of its own has some"
    )


def test_a_factory_that_never_answers_can_be_stopped() -> None:
    """An abort ends the wait for an async factory."""

    async def scenario() -> list[str]:
        signal = AbortSignal()

        async def never(context: AgentContext) -> str:
            asyncio.get_running_loop().call_soon(signal.abort)
            await asyncio.Event().wait()
            return ""

        stream = ScriptedModel([never]).stream(CONTEXT, StreamOptions(signal))
        return [getattr(event, "reason", event.type) async for event in stream]

    assert_same(run(scenario()), ["aborted"], because="whatever waits, waits under the signal")


def test_a_piece_size_below_one_is_refused_at_once() -> None:
    """A programmer's mistake is raised where it is made."""
    for size in (0, -1):
        try:
            ScriptedModel(["好"], chunk_size=size)
        except ValueError as error:
            assert_same(str(size) in str(error), True, because="the error names the value")
        else:
            fail(f"chunk_size={size} was accepted; nothing would ever be sent")
