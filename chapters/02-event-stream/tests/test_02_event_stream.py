"""Chapter 02, the focused tests: events in order, one result, and a way to stop.

No test waits for a clock. `soon()` gives what it awaits a thousand turns of the event loop and
then fails with a sentence, so that a stream that hangs is a red test and not a frozen screen.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeAlias

from grader.testing import assert_same, collect, fail, run, soon
from mini_agent.abort import AbortSignal, race
from mini_agent.event_stream import EventStream, StreamEndedError
from mini_agent.types import AssistantMessage, ToolCall, assistant_message

Event: TypeAlias = str | AssistantMessage
Stream: TypeAlias = EventStream[Event, AssistantMessage]

FIRST, SECOND = '{"path":', '"README.md"}'
REPLY = assistant_message(
    [ToolCall("call-1", "read", {"path": "README.md"}, FIRST + SECOND)], "toolUse"
)


def final(event: Event) -> AssistantMessage | None:
    """A fragment has no result; the whole message is the result, and ends the stream."""
    return event if isinstance(event, AssistantMessage) else None


def test_queue_keeps_the_order_up_to_the_end() -> None:
    """Events come as they were pushed, the terminal one included, and nothing after (step 2.1)."""

    async def scenario() -> None:
        stream: Stream = EventStream(final)
        for event in (FIRST, SECOND, REPLY):
            stream.push(event)
        assert_same(
            await soon(collect(stream), because="a terminal event ends `async for`"),
            [FIRST, SECOND, REPLY],
            because="every event once, in order; the terminal one is an event too",
        )

        stream = EventStream(final)
        for event in (FIRST, REPLY, SECOND):
            stream.push(event)
        assert_same(
            await soon(collect(stream), because="a terminal event ends `async for`"),
            [FIRST, REPLY],
            because="the first terminal event is the last event: what comes later is dropped",
        )

        stream = EventStream(final)
        stream.push(FIRST)
        stream.end()
        stream.push(SECOND)
        assert_same(
            await soon(collect(stream), because="end() ends `async for`, terminal event or not"),
            [FIRST],
            because="end() keeps what is in the queue, and lets nothing more in",
        )

    play(scenario())


def test_queue_wakes_a_reader_that_waits() -> None:
    """A reader of an empty stream sleeps, and each push wakes it at once (step 2.1)."""

    async def scenario() -> None:
        stream: Stream = EventStream(final)
        seen: list[Event] = []

        async def read() -> None:
            async for event in stream:
                seen.append(event)

        reader = asyncio.create_task(read())
        await turns()
        assert_same(seen, [], because="nothing was pushed yet")
        stream.push(FIRST)
        await turns()
        assert_same(seen, [FIRST], because="an event is read when it comes, not at the end")
        stream.push(SECOND)
        stream.push(REPLY)
        await soon(reader, because="the terminal event wakes the reader and ends its loop")
        assert_same(seen, [FIRST, SECOND, REPLY], because="two pushes in one turn are two events")

    play(scenario())


def test_queue_refuses_a_second_reader() -> None:
    """Two readers would each get some of the events, so the second is told at once (step 2.1)."""

    async def scenario() -> None:
        stream: Stream = EventStream(final)
        for event in (FIRST, SECOND, REPLY):
            stream.push(event)
        async for _ in stream:
            break
        try:
            rest = await soon(collect(stream), because="a second reader is refused at once")
        except RuntimeError:
            return
        fail(f"a second reader got {len(rest)} of the events; it must get a RuntimeError")

    play(scenario())


def test_result_needs_no_reader() -> None:
    """`result()` gives the terminal event's result: before, after or without reading (step 2.2)."""

    async def scenario() -> None:
        stream: Stream = EventStream(final)
        early = asyncio.create_task(stream.result())
        await turns()
        for event in (FIRST, SECOND, REPLY):
            stream.push(event)
        assert_same(
            await soon(early, because="the terminal event wakes who waits for the result"),
            REPLY,
            because="asked before the end, without a reader",
        )
        assert_same(
            await soon(stream.result(), because="the result is known"),
            REPLY,
            because="asked again: a result is given to everyone who asks",
        )
        assert_same(
            await soon(collect(stream), because="the events are still there"),
            [FIRST, SECOND, REPLY],
            because="asking for the result takes no event away",
        )
        assert_same(
            await soon(stream.result(), because="the result outlives the events"),
            REPLY,
            because="asked after everything was read",
        )

    play(scenario())


def test_result_may_be_zero() -> None:
    """Only None means "not terminal": 0, "" and () are results like any other (step 2.2)."""

    async def scenario() -> None:
        def count(event: str) -> int | None:
            return int(event[1:]) if event.startswith("=") else None

        stream: EventStream[str, int] = EventStream(count)
        stream.push("nothing found")
        stream.push("=0")
        assert_same(
            await soon(stream.result(), because="the event `=0` is terminal: its result is 0"),
            0,
            because="0 is a result; only None says that an event has none",
        )
        assert_same(
            await soon(collect(stream), because="an event whose result is 0 ends the stream"),
            ["nothing found", "=0"],
            because="an event whose result is 0 ends the stream",
        )

    play(scenario())


def test_result_of_an_unfinished_stream_is_a_named_error() -> None:
    """A stream that ended without a terminal event never leaves anyone waiting (step 2.2)."""

    async def scenario() -> None:
        stream: Stream = EventStream(final)
        early = asyncio.create_task(stream.result())
        stream.push(FIRST)
        await turns()
        stream.end()
        because = "end() without a terminal event: result() raises StreamEndedError, never waits"
        assert_same(
            await outcome(soon(early, because=because)), "StreamEndedError", because=because
        )
        assert_same(
            await outcome(soon(stream.result(), because=because)),
            "StreamEndedError",
            because="asked after the end, the answer is the same",
        )

        stream = EventStream(final)
        stream.end(ConnectionError("the network went away"))
        assert_same(
            await outcome(soon(stream.result(), because="end(failure) ends the stream as well")),
            "ConnectionError: the network went away",
            because="end(failure): result() raises that failure",
        )

        stream = EventStream(final)
        stream.push(REPLY)
        stream.end(ConnectionError("too late"))
        assert_same(
            await soon(stream.result(), because="the terminal event came first"),
            REPLY,
            because="an end after the terminal event changes nothing",
        )

    play(scenario())


def test_pace_is_the_readers() -> None:
    """The producer starts when it is read, and `send` holds it to one event (step 2.3)."""

    async def scenario() -> None:
        made: list[int] = []

        async def produce(stream: Stream) -> None:
            for number in range(100):
                made.append(number)
                await stream.send(f"event {number}")
            stream.push(REPLY)

        stream: Stream = EventStream(final, produce)
        await turns()
        assert_same(made, [], because="nobody has read yet, so there is nothing to produce for")

        async def read_ten() -> None:
            async with stream:
                async for event in stream:
                    if event == "event 9":
                        break
                    await turns()
                    ahead = len(made) - made.index(int(str(event).removeprefix("event "))) - 1
                    if ahead > 1:
                        fail(
                            f"the reader has {event!r}, and the producer is {ahead} events ahead; "
                            "`await send()` returns only when its event was taken, so it holds one"
                        )

        await soon(
            read_ten(),
            because="an event wakes the reader, its being taken wakes send(), and leaving closes",
        )

        made.clear()
        assert_same(
            await soon(
                EventStream(final, produce).result(),
                because="somebody awaits result() and nobody reads: then send() must not wait",
            ),
            REPLY,
            because="result() alone runs the producer to its end",
        )

    play(scenario())


def test_failure_of_a_producer_comes_out_where_it_is_read() -> None:
    """What escapes from a producer reaches the reader, after the events before it (step 2.3)."""

    async def scenario() -> None:
        async def lose_the_network(stream: Stream) -> None:
            stream.push(FIRST)
            stream.push(SECOND)
            raise ConnectionError("the network went away")

        stream: Stream = EventStream(final, lose_the_network)
        seen: list[Event] = []

        async def read() -> None:
            async with stream:
                async for event in stream:
                    seen.append(event)

        assert_same(
            await outcome(soon(read(), because="a producer that failed has ended its stream")),
            "ConnectionError: the network went away",
            because="the exception that escaped from the producer is raised in the reader's loop",
        )
        assert_same(seen, [FIRST, SECOND], because="what came before the failure is read before it")
        assert_same(
            await outcome(soon(stream.result(), because="the stream has ended")),
            "ConnectionError: the network went away",
            because="result() raises it as well",
        )

        async def forget_the_end(stream: Stream) -> None:
            await stream.send(FIRST)

        stream = EventStream(final, forget_the_end)
        because = "a producer that returns has ended its stream, terminal event or not"
        assert_same(await soon(collect(stream), because=because), [FIRST], because=because)
        assert_same(
            await outcome(soon(stream.result(), because=because)),
            "StreamEndedError",
            because=because,
        )

    play(scenario())


def test_closing_stops_the_producer_and_waits_for_it() -> None:
    """Leaving `async with` cancels the producer and returns when it has cleaned up (step 2.3)."""

    async def scenario() -> None:
        log: list[str] = []

        async def produce(stream: Stream) -> None:
            log.append("opened")
            try:
                for _ in range(100):
                    await stream.send(FIRST)
                await asyncio.Event().wait()  # the server is silent
            finally:
                await turns()  # closing a connection takes a moment
                log.append("released")

        async def read_one() -> None:
            async with EventStream(final, produce) as stream:
                async for _ in stream:
                    break
            log.append("left")

        await soon(
            read_one(), because="an event wakes the reader, and leaving cancels the producer"
        )
        assert_same(
            log,
            ["opened", "released", "left"],
            because="aclose() cancels the producer, and waits until it has released what it holds",
        )

        log.clear()
        stream: Stream = EventStream(final, produce)
        await soon(stream.aclose(), because="there is nothing to wait for")
        because = "a stream that was closed has ended: nothing to read, StreamEndedError as result"
        assert_same(await soon(collect(stream), because=because), [], because=because)
        assert_same(
            await outcome(soon(stream.result(), because=because)),
            "StreamEndedError",
            because=because,
        )
        assert_same(log, [], because="a producer whose stream was closed before is never started")

    play(scenario())


def test_signal_goes_on_once() -> None:
    """An abort wakes all who wait, and the first reason stays (step 2.4)."""

    async def scenario() -> None:
        signal = AbortSignal()
        told: list[str] = []
        signal.add_callback(lambda: told.append("kept"))
        removed = lambda: told.append("removed")  # noqa: E731
        signal.add_callback(removed)
        signal.remove_callback(removed)
        waiters = [asyncio.create_task(signal.wait()) for _ in range(2)]
        await turns()
        assert_same((signal.aborted, signal.reason), (False, None), because="nobody has aborted")
        signal.raise_if_aborted()

        signal.abort("Ctrl+C")
        signal.abort("and again")

        await soon(asyncio.gather(*waiters), because="abort() wakes everyone who waits")
        await soon(signal.wait(), because="on an aborted signal wait() returns at once")
        assert_same(
            (signal.aborted, signal.reason),
            (True, "Ctrl+C"),
            because="a signal goes on once and stays on: the first reason is the reason",
        )
        assert_same(told, ["kept"], because="a callback runs once, at the abort, unless removed")
        assert_same(
            await outcome(raising(signal)),
            "AbortError: Ctrl+C",
            because="raise_if_aborted() raises AbortError with the reason",
        )

        silent = AbortSignal()
        silent.abort()
        assert_same(
            (silent.aborted, silent.reason), (True, None), because="an abort needs no reason"
        )

    play(scenario())


def test_race_ends_with_the_abort() -> None:
    """`race` gives the value, or raises AbortError once the work has cleaned up (step 2.4)."""

    async def scenario() -> None:
        log: list[str] = []

        async def read_file() -> str:
            await turns()
            return "# Project"

        async def stall() -> str:
            log.append("started")
            try:
                await asyncio.Event().wait()  # a server that never answers
            finally:
                await turns()
                log.append("released")
            return "never"

        for signal in (None, AbortSignal()):
            assert_same(
                await soon(race(read_file(), signal), because="the work ends by itself"),
                "# Project",
                because="without an abort, race() gives what the work gives",
            )

        signal = AbortSignal()
        racing = asyncio.create_task(outcome(race(stall(), signal)))
        await turns()
        signal.abort("Ctrl+C")
        ended = await soon(racing, because="an abort ends race(), however long the work would take")
        log.append(ended)
        assert_same(
            log,
            ["started", "released", "AbortError: Ctrl+C"],
            because="the work is cancelled and has cleaned up before race() raises AbortError",
        )

        log.clear()
        ended = await outcome(soon(race(stall(), signal), because="the signal is aborted already"))
        assert_same(ended, "AbortError: Ctrl+C", because="the signal was aborted before")
        assert_same(log, [], because="on an aborted signal the work is not even started")

    play(scenario())


def test_race_leaves_a_cancellation_what_it_is() -> None:
    """CancelledError belongs to the event loop: it goes through race() unchanged (step 2.4)."""

    async def scenario() -> None:
        log: list[str] = []

        async def stall() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                log.append("released")

        racing = asyncio.create_task(race(stall(), AbortSignal()))
        await turns()
        racing.cancel()
        assert_same(
            await outcome(soon(racing, because="a cancelled race() ends")),
            "CancelledError",
            because="the task was cancelled from outside, and no signal was aborted",
        )
        assert_same(log, ["released"], because="the work is cancelled with it")

        async def stop_and_go_on() -> int:
            signal = AbortSignal()
            asyncio.get_running_loop().call_soon(signal.abort)
            await outcome(race(stall(), signal))
            task = asyncio.current_task()
            return task.cancelling() if task else -1

        assert_same(
            await soon(asyncio.create_task(stop_and_go_on()), because="the abort ends race()"),
            0,
            because="who caught the AbortError goes on: no request to cancel is left on the task",
        )

    play(scenario())


def play(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario. One that is stuck where no `soon()` watches fails here."""
    run(soon(scenario, turns=20_000, because="somebody waits for an event or an end for ever"))


async def turns(count: int = 5) -> None:
    """Let every other task run for a while: no clock, a few turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def raising(signal: AbortSignal) -> None:
    signal.raise_if_aborted()


async def outcome(awaitable: object) -> str:
    """How it ended: "returned", or the exception's name and text."""
    try:
        await awaitable  # type: ignore[misc]
    except (AssertionError, NotImplementedError):
        raise
    except StreamEndedError:
        return "StreamEndedError"  # its text is the author's
    except (Exception, asyncio.CancelledError) as error:
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return "returned"
