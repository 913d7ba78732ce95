"""Chapter 02, stretch: what real life does to a stream and to a race. Still no clock."""

import asyncio
import gc
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from grader.testing import assert_same, collect, run, soon
from mini_agent.abort import AbortSignal, race
from mini_agent.event_stream import EventStream, StreamEndedError

Numbers: TypeAlias = EventStream[int, str]


def never(event: int) -> str | None:
    """No event is terminal."""
    return None


def at_99(event: int) -> str | None:
    """99 is the terminal event."""
    return "done" if event == 99 else None


def test_many_producers_share_one_stream() -> None:
    """Each sender's events keep their order, none is lost, and all senders get on."""

    async def scenario() -> None:
        async def produce(stream: EventStream[tuple[str, int], str]) -> None:
            async def send_all(name: str) -> None:
                for number in range(20):
                    await stream.send((name, number))

            await asyncio.gather(*(send_all(name) for name in "abc"))

        stream: EventStream[tuple[str, int], str] = EventStream(lambda event: None, produce)
        seen = await soon(collect(stream), because="60 events end after 60 reads")
        for name in "abc":
            assert_same(
                [number for sender, number in seen if sender == name],
                list(range(20)),
                because=f"every event of sender {name}, in its order",
            )

    run(scenario())


def test_memory_holds_two_events_and_not_a_thousand() -> None:
    """With `send`, one event is in the reader's hand and at most one is under way."""

    class Payload:
        pass

    async def scenario() -> None:
        alive: weakref.WeakSet[Payload] = weakref.WeakSet()
        most = 0

        async def produce(stream: EventStream[Payload, str]) -> None:
            for _ in range(1000):
                payload = Payload()
                alive.add(payload)
                await stream.send(payload)

        stream: EventStream[Payload, str] = EventStream(lambda event: None, produce)
        async for _ in stream:
            most = max(most, len(alive))
        assert most <= 3, f"{most} events of 1000 were alive at once"

    run(scenario())


@pytest.mark.parametrize("reads", range(6))
def test_closing_at_any_point_releases(reads: int) -> None:
    """However many events were read, closing ends the producer, also in the midst of a send."""

    async def scenario() -> None:
        log: list[str] = []

        async def produce(stream: Numbers) -> None:
            log.append("opened")
            try:
                for number in range(5):
                    await stream.send(number)
            finally:
                log.append("released")

        stream: Numbers = EventStream(never, produce)
        async with stream:
            for _ in range(reads):
                await anext(stream, None)
        assert log in ([], ["opened", "released"]), f"after {reads} reads: {log}"
        assert_same(await collect(stream), [], because="what was unread is dropped")

    run(scenario())


def test_closing_ends_a_reader_that_waits() -> None:
    """A close by another task is an end for the reader, and no error."""

    async def scenario() -> None:
        stream: Numbers = EventStream(never)
        reader = asyncio.create_task(collect(stream))
        asker = asyncio.create_task(ending(stream.result()))
        await turns()
        await soon(stream.aclose(), because="there is no producer to wait for")
        assert_same(
            await soon(reader, because="aclose() wakes the reader"), [], because="nothing came"
        )
        assert_same(
            await soon(asker, because="aclose() wakes who asked for the result"),
            "StreamEndedError",
            because="a closed stream has no result",
        )

    run(scenario())


def test_closing_twice_does_not_break_off_the_cleaning_up() -> None:
    """The second aclose() waits with the first; it does not cancel the producer again."""

    async def scenario() -> None:
        log: list[str] = []

        async def produce(stream: Numbers) -> None:
            try:
                await stream.send(1)
            finally:
                await turns(20)
                log.append("released")

        stream: Numbers = EventStream(never, produce)
        await anext(stream)
        stream.push(2)

        async def close(name: str) -> None:
            await stream.aclose()
            log.append(name)

        first = asyncio.create_task(close("first"))
        await turns()
        second = asyncio.create_task(close("second"))
        await soon(asyncio.gather(first, second), because="both wait for one release")
        assert_same(log[:1], ["released"], because="the cleaning up went on to its end")
        await soon(stream.aclose(), because="a closed stream can be closed again")

    run(scenario())


def test_a_close_that_is_cancelled_still_ends_the_stream() -> None:
    """Ctrl+C during the close: whoever waits for the result is told, and nothing hangs."""

    async def scenario() -> None:
        gate = asyncio.Event()

        async def produce(stream: Numbers) -> None:
            try:
                await stream.send(1)
                await stream.send(2)
            finally:
                await gate.wait()  # a connection that closes slowly

        stream: Numbers = EventStream(never, produce)
        await anext(stream)
        closing = asyncio.create_task(stream.aclose())
        await turns()
        closing.cancel()
        assert_same(
            await soon(ending(closing), because="a cancelled aclose() ends"),
            "CancelledError",
            because="a cancellation is passed on",
        )
        gate.set()
        assert_same(
            await soon(ending(stream.result()), because="the stream has ended"),
            "StreamEndedError",
            because="the stream was closed, however abruptly",
        )

    run(scenario())


def test_a_producer_that_is_cancelled_before_its_first_step() -> None:
    """A task cancelled that early runs no line of its own, not even a `finally`."""

    async def scenario() -> None:
        async def produce(stream: Numbers) -> None:
            raise AssertionError("never reached")

        stream: Numbers = EventStream(never, produce)
        asker = asyncio.create_task(ending(stream.result()))
        before = asyncio.all_tasks()
        await asyncio.sleep(0)  # now the asker has started the producer's task
        for task in asyncio.all_tasks() - before:
            task.cancel()
        assert_same(
            await soon(asker, because="a producer that is gone ends its stream"),
            "StreamEndedError",
            because="nobody else can end it",
        )

    run(scenario())


def test_who_gives_up_asking_leaves_the_pace_to_the_reader() -> None:
    """`result()` lets the producer run; once nobody awaits it any more, `send` waits again."""

    async def scenario() -> None:
        made: list[int] = []

        async def produce(stream: Numbers) -> None:
            for number in range(10_000):
                made.append(number)
                await stream.send(number)

        async with EventStream(never, produce) as stream:
            asker = asyncio.create_task(stream.result())
            await turns(20)
            asker.cancel()
            await turns(20)
            count = len(made)
            await turns(100)
            assert_same(len(made), count, because="nobody asks and nobody reads: nothing is made")

    run(scenario())


def test_an_endless_producer_lets_others_run() -> None:
    """Only `result()` is awaited and the producer never ends: a close must get through."""

    async def scenario() -> None:
        async def produce(stream: Numbers) -> None:
            number = 0
            while number < 200_000:  # a bound, so that a failure is a failure and not a full disk
                await stream.send(number := number + 1)
            raise AssertionError("200,000 events were sent before anybody else had a turn")

        stream: Numbers = EventStream(never, produce)
        asker = asyncio.create_task(ending(stream.result()))
        await turns()
        await soon(stream.aclose(), because="each send gives way to the other tasks")
        assert_same(await asker, "StreamEndedError", because="it was closed before its end")

    run(scenario())


@pytest.mark.parametrize(
    "how",
    [ValueError("bad"), KeyError("index"), StreamEndedError("inner"), RuntimeError("boom")],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_of_any_kind_is_the_readers(how: Exception) -> None:
    """The very object that escaped is raised, in the loop and by result(); nothing is wrapped."""

    async def scenario() -> None:
        async def produce(stream: Numbers) -> None:
            await stream.send(1)
            raise how

        stream: Numbers = EventStream(at_99, produce)
        with pytest.raises(type(how)) as read:
            await soon(collect(stream), because="the failure ends the stream")
        with pytest.raises(type(how)) as asked:
            await soon(stream.result(), because="the failure ends the stream")
        assert read.value is how
        assert asked.value is how

    run(scenario())


def test_a_stray_stop_async_iteration_is_no_end() -> None:
    """A producer that reads past the end of something else has failed; its reader must see that."""

    async def scenario() -> None:
        async def nothing() -> AsyncIterator[int]:
            return
            yield 0

        async def produce(stream: Numbers) -> None:
            await stream.send(1)
            await stream.send(await anext(nothing()))

        stream: Numbers = EventStream(at_99, produce)
        because = "raised in the reader's loop, StopAsyncIteration would pass for the end"
        read = await ending(soon(collect(stream), because=because))
        assert_same(read, "RuntimeError", because=because)
        asked = await ending(soon(stream.result(), because=because))
        assert_same(asked, "RuntimeError", because="result() raises the same failure")

    run(scenario())


def test_nothing_is_reported_behind_the_readers_back() -> None:
    """No "Task exception was never retrieved", no "coroutine was never awaited"."""

    async def scenario() -> None:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

        async def fail(stream: Numbers) -> None:
            await stream.send(1)
            raise ConnectionError("the network went away")

        async def fail_while_closing(stream: Numbers) -> None:
            try:
                await stream.send(1)
                await stream.send(2)
            finally:
                raise ConnectionError("closing failed")

        EventStream(never, fail)  # never read: never started
        stream: Numbers = EventStream(never, fail)
        await ending(collect(stream))
        asked: Numbers = EventStream(never, fail)
        await ending(asked.result())
        for producer in (fail, fail_while_closing):
            async with EventStream(never, producer) as closed:
                await anext(closed)
                await turns()
        del stream, asked, closed
        gc.collect()
        await turns()
        gc.collect()
        assert_same(
            [str(report["message"]) for report in reports],
            [],
            because="each failure reached its reader, or was the price of closing early",
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(scenario())


def test_a_race_that_is_over_is_deaf() -> None:
    """An abort after the race neither disturbs the task nor is remembered against it."""

    async def scenario() -> None:
        signal = AbortSignal()
        for number in range(100):
            assert_same(await race(value(number), signal), number, because="no abort yet")
        signal.abort("late")
        await turns(20)
        task = asyncio.current_task()
        assert task is not None
        assert_same(task.cancelling(), 0, because="no race is under way")

    run(scenario())


def test_an_abort_from_inside_the_work_does_not_strike_later() -> None:
    """The work aborts its own signal and returns: its value counts, and the next await lives."""

    async def scenario() -> None:
        signal = AbortSignal()

        async def abort_and_return() -> str:
            signal.abort("enough")
            return "value"

        how = await ending(race(abort_and_return(), signal))
        assert how in ("returned", "AbortError"), f"race() ended with {how}"
        await turns(20)  # a stray cancellation would strike here

    run(scenario())


def test_a_cancellation_beats_an_abort_in_the_same_turn() -> None:
    """The event loop's cancellation is never lost, whichever of the two came first."""

    async def scenario() -> None:
        for abort_first in (True, False):
            signal = AbortSignal()
            racing = asyncio.create_task(race(stall(), signal))
            await turns()
            acts: list[Callable[[], object]] = [signal.abort, racing.cancel]
            for act in acts if abort_first else reversed(acts):
                act()
            await soon(ending(racing), because="both stop the work")
            assert racing.cancelled(), "the task was cancelled: CancelledError always propagates"

    run(scenario())


def test_a_cancellation_storm_ends_the_task_once() -> None:
    """Ten cancels and five aborts at once: the work is released once, and the task is cancelled."""

    async def scenario() -> None:
        log: list[str] = []
        signal = AbortSignal()
        racing = asyncio.create_task(race(stall(log), signal))
        await turns()
        for number in range(10):
            racing.cancel()
            if number % 2:
                signal.abort(f"abort {number}")
        await soon(ending(racing), because="one of fifteen requests would have done")
        assert racing.cancelled(), "the task was cancelled"
        assert_same(log, ["released"], because="the work cleans up once")

    run(scenario())


def test_a_timeout_around_or_inside_a_race_stays_a_timeout() -> None:
    """`asyncio.timeout` counts cancellations as well; the two must not take each other's."""

    async def scenario() -> None:
        async def around() -> None:
            async with asyncio.timeout(0):
                await race(stall(), AbortSignal())

        async def inside() -> None:
            async def work() -> None:
                async with asyncio.timeout(0):
                    await stall()

            await race(work(), AbortSignal())

        for case in (around, inside):
            assert_same(
                await ending(asyncio.create_task(case())),
                "TimeoutError",
                because=f"the time limit {case.__name__} the race was what ended it",
            )

    run(scenario())


def test_nested_races_on_one_signal_end_in_one_abort() -> None:
    """A tool that races inside a loop that races: the outer one tells AbortError."""

    async def scenario() -> None:
        log: list[str] = []
        signal = AbortSignal()
        racing = asyncio.create_task(ending(race(race(stall(log), signal), signal)))
        await turns()
        signal.abort("Ctrl+C")
        assert_same(
            await soon(racing, because="the abort ends both"), "AbortError", because="one abort"
        )
        assert_same(log, ["released"], because="the innermost work cleans up")

    run(scenario())


def test_a_task_can_be_raced_as_well() -> None:
    """An awaitable need not be a coroutine: a task that loses is cancelled, started or not."""

    async def scenario() -> None:
        for aborted_before in (True, False):
            signal = AbortSignal()
            work = asyncio.create_task(stall())
            if aborted_before:
                signal.abort()
            else:
                await turns()
                asyncio.get_running_loop().call_soon(signal.abort)
            assert_same(
                await soon(ending(race(work, signal)), because="the abort ends the race"),
                "AbortError",
                because="the signal was aborted",
            )
            await turns()
            assert work.cancelled(), "the task that lost was cancelled"

    run(scenario())


def test_the_works_own_exception_is_passed_on() -> None:
    """What the work raises is what race() raises, also while an abort is under way."""

    async def scenario() -> None:
        async def fail() -> None:
            raise ConnectionError("refused")

        async def fail_in_cleanup() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise ConnectionError("closing failed")

        signal = AbortSignal()
        assert_same(
            await ending(race(fail(), signal)), "ConnectionError", because="the work failed"
        )
        racing = asyncio.create_task(ending(race(fail_in_cleanup(), signal)))
        await turns()
        signal.abort()
        how = await soon(racing, because="the abort ends the race")
        assert how in ("ConnectionError", "AbortError"), f"race() ended with {how}"

    run(scenario())


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def value(number: int) -> int:
    return number


async def stall(log: list[str] | None = None) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        if log is not None:
            log.append("released")


async def ending(awaitable: Awaitable[object]) -> str:
    """How it ended: "returned", or the name of the exception."""
    try:
        await awaitable
    except AssertionError:
        raise
    except (Exception, asyncio.CancelledError) as error:
        return type(error).__name__
    return "returned"
