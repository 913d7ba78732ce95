"""How long the chapter-05 model takes from bytes to events.

    python tests/benchmarks/bench_openai_stream.py

Two tables. The first shows what a reply's partial snapshots cost as it grows. The second compares
one reply of 2,000 deltas with the openai SDK's own decoding of the same bytes: paired runs in one
process, medians. The SDK is no dependency of the project: `pip install openai` first, or the
second table is left out, and the exit code is 3.
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import metadata
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
READ = 1460  # bytes a read: what one packet carries
PIECE = "四个字符"  # each delta's text: four characters, twelve bytes


def body_of(deltas: int) -> bytes:
    """A reply of so many text deltas, each in a payload as providers write it."""
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "test-model",
    }

    def payload(delta: dict[str, str], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return json.dumps({**head, "choices": [choice]}, ensure_ascii=False, separators=(",", ":"))

    text, end = payload({"content": PIECE}), payload({}, "stop")
    return "".join(f"data: {line}\n\n" for line in [text] * deltas + [end, "[DONE]"]).encode()


class Body(httpx.AsyncByteStream):
    """The body in reads of READ bytes."""

    def __init__(self, body: bytes) -> None:
        self.reads = [body[at : at + READ] for at in range(0, len(body), READ)]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for read in self.reads:
            yield read


def client_for(body: bytes) -> httpx.AsyncClient:
    headers = {"content-type": "text/event-stream"}

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=headers, stream=Body(body))

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


async def with_model(body: bytes) -> int:
    """The chapter's model: bytes in, events with partial snapshots out. Returns the characters."""
    from mini_agent.events import TextDeltaEvent
    from mini_agent.provider_adapter import ProviderModel
    from mini_agent.providers.openai_compatible import OpenAICompatibleTransport
    from mini_agent.types import AgentContext, text_of, user_message

    async with client_for(body) as client:
        transport = OpenAICompatibleTransport(
            base_url="https://provider.test/v1", api_key="test-key", client=client
        )
        model = ProviderModel(transport, provider="test", model="test-model")
        stream = model.stream(AgentContext((user_message("读取 README.md", 1),)))
        characters = 0
        async for event in stream:
            if isinstance(event, TextDeltaEvent):
                characters += len(event.delta)
        message = await stream.result()
    assert (message.stop_reason, len(text_of(message))) == ("stop", characters)
    return characters


async def with_sdk(body: bytes) -> int:
    """The openai SDK: the same bytes in, its own chunk objects out."""
    import openai

    async with client_for(body) as http_client:
        client = openai.AsyncOpenAI(
            base_url="https://provider.test/v1", api_key="test-key", http_client=http_client
        )
        stream = await client.chat.completions.create(
            model="test-model",
            messages=[{"role": "user", "content": "读取 README.md"}],
            stream=True,
        )
        characters = 0
        async for chunk in stream:
            characters += len(chunk.choices[0].delta.content or "")
    return characters


def seconds(run: Callable[[bytes], Awaitable[int]], body: bytes, deltas: int) -> float:
    """The seconds of one reply, client and request included. Checks that nothing was lost."""

    async def timed() -> float:
        gc.collect()
        start = time.perf_counter()
        characters = await run(body)
        took = time.perf_counter() - start
        assert characters == deltas * len(PIECE), f"{characters} characters of {deltas} deltas"
        return took

    return asyncio.run(timed())


def snapshots(sizes: list[int], repeats: int) -> None:
    print("Partial snapshots: one reply of n text deltas, from bytes to `done`")
    print()
    print("| deltas | seconds | microseconds a delta | text copied into snapshots |")
    print("| ---: | ---: | ---: | ---: |")
    seconds(with_model, body_of(100), 100)  # imports and caches, out of the figures
    for deltas in sizes:
        body = body_of(deltas)
        took = statistics.median(seconds(with_model, body, deltas) for _ in range(repeats))
        copied = deltas * (deltas + 1) // 2 * len(PIECE) * 2 / 1e6  # two bytes a character
        row = f"| {deltas:,} | {took:.3f} | {took / deltas * 1e6:.0f} | {copied:,.0f} MB |"
        print(row, flush=True)


def against_sdk(deltas: int, pairs: int) -> bool:
    """Print the comparison. False if the SDK is not there."""
    print()
    print(f"Against the openai SDK: the same {deltas:,} deltas, {pairs} pairs, medians")
    print()
    try:
        version = metadata.version("openai")
    except metadata.PackageNotFoundError:
        print("left out: the package `openai` is not installed; `pip install openai`")
        return False
    body = body_of(deltas)
    for run in (with_model, with_sdk):
        seconds(run, body, deltas)  # imports, caches and the SDK's lazy types, out of the figures
    ours, theirs, ratios = [], [], []
    for _ in range(pairs):
        ours.append(seconds(with_model, body, deltas))
        theirs.append(seconds(with_sdk, body, deltas))
        ratios.append(theirs[-1] / ours[-1])
    print("| reader | milliseconds |")
    print("| --- | ---: |")
    print(f"| chapter 05, events with partials | {statistics.median(ours) * 1e3:.1f} |")
    print(f"| openai {version}, its chunks | {statistics.median(theirs) * 1e3:.1f} |")
    print()
    print(f"the SDK takes {statistics.median(ratios):.1f} times as long (median of the pairs)")
    return True


def main() -> int:
    """Print both tables. 0 if both could be measured, 3 without the SDK."""
    parser = argparse.ArgumentParser(description="Time the chapter-05 model.")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000, 10_000, 50_000, 200_000])
    parser.add_argument("--repeats", type=int, default=3, help="runs a size (default 3)")
    parser.add_argument("--deltas", type=int, default=2_000, help="for the SDK (default 2000)")
    parser.add_argument("--pairs", type=int, default=9, help="paired runs (default 9)")
    options = parser.parse_args()

    sys.path.insert(0, str(ROOT))
    from grader.checkpoint import compose_target
    from grader.course import load_course

    with tempfile.TemporaryDirectory() as directory:
        course = load_course(ROOT)
        compose_target(course, course.chapter("05"), Path(directory))
        sys.path.insert(0, directory)
        snapshots(options.sizes, options.repeats)
        measured = against_sdk(options.deltas, options.pairs)
    return 0 if measured else 3


if __name__ == "__main__":
    sys.exit(main())
