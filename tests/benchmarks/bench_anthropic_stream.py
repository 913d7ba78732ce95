"""How long target(10) takes to decode one Anthropic reply of 5 MB, next to the anthropic SDK.

    python tests/benchmarks/bench_anthropic_stream.py

The reply is framed as the chapter's recorded one: its two text deltas, again and again. All
readers get the same bytes in the same reads, one after the other in each of several rounds. Medians
are printed, and the ratio is the median of the rounds' ratios.

The SDK has two readers. `messages.stream()` builds the message while it arrives, with a snapshot
for each event, as ours does. `messages.create(stream=True)` yields the provider's events and
builds nothing. The SDK is no dependency of the project: `pip install anthropic` first, or the exit
code is 3. The exit code is 1 if `messages.stream()` was faster than ours.
"""

import argparse
import asyncio
import gc
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
HEADERS = {"content-type": "text/event-stream"}
# The SDK wants fields that the recorded reply leaves out.
START = (
    'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_sample",'
    '"type":"message","role":"assistant","model":"test-model","content":[],"stop_reason":null,'
    '"stop_sequence":null,"usage":{"input_tokens":412,"output_tokens":1}}}\n\n'
)

Reader = Callable[[bytes, int], Awaitable[int]]


def body_of(size: int) -> tuple[bytes, int]:
    """A reply of about `size` bytes, and the number of characters of its text."""
    from mini_agent.providers.recorded_stream import RECORDED_RESPONSE

    events = [f"{event}\n\n" for event in RECORDED_RESPONSE.split("\n\n")[:-1]]
    deltas = "".join(event for event in events if "text_delta" in event)
    repeats = size // len(deltas.encode())
    end = events[9].replace('"tool_use"', '"end_turn"')
    body = "".join([START, events[1], deltas * repeats, events[4], end, events[10]])
    return body.encode(), repeats * len("这个我算一下。")


def client_for(library: Any, body: bytes, read: int) -> Any:
    """A client of httpx, or of the SDK's own copy of it, that gives `body` in reads."""

    class Body(library.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for at in range(0, len(body), read):
                yield body[at : at + read]

    def answer(_: Any) -> Any:
        return library.Response(200, headers=HEADERS, stream=Body())

    return library.AsyncClient(transport=library.MockTransport(answer))


async def with_model(body: bytes, read: int) -> int:
    """Chapter 10: bytes in, model events with partials out, and the message."""
    from mini_agent.providers.anthropic import AnthropicModel
    from mini_agent.types import AgentContext, text_of, user_message

    async with client_for(httpx, body, read) as client:
        model = AnthropicModel(api_key="test-key", client=client)
        stream = model.stream(AgentContext((user_message("算一下 12*8", 1),)))
        characters = 0
        async for event in stream:
            if event.type == "text_delta":
                characters += len(event.delta)
        message = await stream.result()
    assert (message.stop_reason, len(text_of(message))) == ("stop", characters), (
        message.error_message
    )
    return characters


def sdk_client(body: bytes, read: int) -> Any:
    import anthropic

    try:
        http_client = client_for(httpx, body, read)
        return anthropic.AsyncAnthropic(api_key="test-key", http_client=http_client)
    except TypeError:  # newer versions of the SDK bring an httpx of their own
        http_client = client_for(importlib.import_module("httpx2"), body, read)
        return anthropic.AsyncAnthropic(api_key="test-key", http_client=http_client)


ASK: dict[str, Any] = {
    "model": "test-model",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "算一下 12*8"}],
}


async def with_sdk_message(body: bytes, read: int) -> int:
    """`messages.stream()`: its events, and the message."""
    async with sdk_client(body, read) as client, client.messages.stream(**ASK) as stream:
        characters = 0
        async for event in stream:
            if event.type == "text":
                characters += len(event.text)
        message = await stream.get_final_message()
    assert len(message.content[0].text) == characters
    return characters


async def with_sdk_events(body: bytes, read: int) -> int:
    """`messages.create(stream=True)`: the provider's events only."""
    async with sdk_client(body, read) as client:
        characters = 0
        async for event in await client.messages.create(**ASK, stream=True):
            if event.type == "content_block_delta":
                characters += len(event.delta.text)
    return characters


def seconds(reader: Reader, body: bytes, read: int, characters: int) -> float:
    """The seconds of one reply, client and request included. Checks that nothing was lost."""

    async def timed() -> float:
        gc.collect()
        start = time.perf_counter()
        got = await reader(body, read)
        took = time.perf_counter() - start
        assert got == characters, f"{got} characters of {characters}"
        return took

    return asyncio.run(timed())


def main() -> int:
    parser = argparse.ArgumentParser(description="Time chapter 10 against the anthropic SDK.")
    parser.add_argument("--size", type=int, default=5_000_000, help="bytes (default 5,000,000)")
    parser.add_argument("--read", type=int, default=16_384, help="bytes a read (default 16,384)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    try:
        sdk = f"anthropic {metadata.version('anthropic')}"
    except metadata.PackageNotFoundError:
        print("the package `anthropic` is not installed; `pip install anthropic`")
        return 3

    sys.path.insert(0, str(ROOT))
    from grader.checkpoint import compose_target
    from grader.course import load_course

    with tempfile.TemporaryDirectory() as directory:
        course = load_course(ROOT)
        compose_target(course, course.chapter("10"), Path(directory))
        sys.path.insert(0, directory)
        body, characters = body_of(options.size)
        readers: dict[str, Reader] = {
            "chapter 10: events, partials, message": with_model,
            f"{sdk}, messages.stream(): events, snapshots, message": with_sdk_message,
            f"{sdk}, messages.create(stream=True): events": with_sdk_events,
        }
        for reader in readers.values():  # imports, caches and lazy types, out of the figures
            seconds(reader, body, options.read, characters)
        times: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(options.rounds):
            for name, reader in readers.items():
                times[name].append(seconds(reader, body, options.read, characters))

    deltas = 2 * characters // len("这个我算一下。")
    print(f"One reply of {len(body):,} bytes, {deltas:,} deltas, {options.rounds} rounds, medians")
    print()
    print("| reader | seconds | times ours |")
    print("| --- | ---: | ---: |")
    ours, *_ = times.values()
    ratios = {
        name: statistics.median(a / b for a, b in zip(each, ours, strict=True))
        for name, each in times.items()
    }
    for name, each in times.items():
        print(f"| {name} | {statistics.median(each):.2f} | {ratios[name]:.2f} |")
    _, message_ratio, _ = ratios.values()
    return 0 if message_ratio >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
