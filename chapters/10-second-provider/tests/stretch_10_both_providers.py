"""Chapter 10, stretch: one list of behaviours, two wire formats.

Each case says what a provider does, in words of neither format. It is written down once in
each, sent through each provider's Model, and has to come out the same.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import httpx
import pytest

from grader.testing import assert_same, collect, pieces, run, soon
from mini_agent.abort import AbortSignal
from mini_agent.events import DoneEvent, ErrorEvent, ModelEvent
from mini_agent.model import Model, StreamOptions
from mini_agent.provider_adapter import ProviderModel
from mini_agent.providers.anthropic import AnthropicModel
from mini_agent.providers.openai_compatible import OpenAICompatibleTransport
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
    ContentBlock,
    StopReason,
    TextContent,
    ToolCall,
    Usage,
    user_message,
)

KEY = "test-key"
CONTEXT = AgentContext((user_message("读取 README.md", 1),))


# What a provider does


@dataclass(frozen=True)
class Say:
    """A piece of the one text block."""

    piece: str


@dataclass(frozen=True)
class Call:
    """The start of a tool call. `slot` is the provider's number for it."""

    slot: int
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """A fragment of the arguments of the call in `slot`."""

    slot: int
    fragment: str


@dataclass(frozen=True)
class Break:
    """The stream reports an error, or ends without a word."""

    error: str | None = None


Act = Say | Call | Arguments | Break
Format = Literal["anthropic", "openai"]
FORMATS: tuple[Format, ...] = ("anthropic", "openai")


@dataclass(frozen=True)
class Case:
    """What the provider does, and the reply that has to come of it."""

    name: str
    acts: tuple[Act, ...]
    ends: StopReason  # of our message; "stop", "length" and "toolUse" are told by the provider
    content: tuple[ContentBlock, ...]
    events: str
    says: str = ""


READ = ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}')
SEARCH = ToolCall("call-2", "search", {"query": "pi"}, '{"query":"pi"}')

CASES = (
    Case(
        "text",
        (Say("正在"), Say("读取")),
        "stop",
        (TextContent("正在读取"),),
        "start text_delta text_delta done",
    ),
    Case(
        "text and a call",
        (
            Say("先读。"),
            Call(1, "call-1", "read"),
            Arguments(1, '{"path":'),
            Arguments(1, '"README.md"}'),
        ),
        "toolUse",
        (TextContent("先读。"), READ),
        "start text_delta toolcall_delta toolcall_delta toolcall_end done",
    ),
    Case(
        "two calls and a text that overlap",
        (
            Call(4, "call-1", "read"),
            Arguments(4, '{"path":'),
            Say("先读"),
            Call(2, "call-2", "search"),
            Arguments(2, '{"query":'),
            Arguments(4, '"README.md"}'),
            Say("，再查"),
            Arguments(2, '"pi"}'),
        ),
        "toolUse",
        (READ, TextContent("先读，再查"), SEARCH),
        "start toolcall_delta text_delta toolcall_delta toolcall_delta text_delta toolcall_delta "
        "toolcall_end toolcall_end done",
    ),
    Case(
        "a call without arguments",
        (Call(0, "call-1", "now"),),
        "toolUse",
        (ToolCall("call-1", "now", {}, ""),),
        "start toolcall_end done",
    ),
    Case(
        "a limit inside the arguments",
        (Call(0, "call-1", "read"), Arguments(0, '{"path":')),
        "length",
        (ToolCall("call-1", "read", None, '{"path":'),),
        "start toolcall_delta done",
    ),
    Case(
        "arguments that are no object",
        (Call(0, "call-1", "read"), Arguments(0, '["README.md"]')),
        "error",
        (ToolCall("call-1", "read", None, '["README.md"]'),),
        "start toolcall_delta error",
        '["README.md"]',
    ),
    Case(
        "an end without a finish",
        (Say("正在"), Break()),
        "error",
        (TextContent("正在"),),
        "start text_delta error",
    ),
    Case(
        "an error in the stream",
        (Say("正在"), Break("Overloaded")),
        "error",
        (TextContent("正在"),),
        "start text_delta error",
        "Overloaded",
    ),
    Case("nothing at all", (Break(),), "error", (), "error"),
    Case("an error before anything", (Break("Overloaded"),), "error", (), "error", "Overloaded"),
)


# How each format writes it


def told_end(case: Case) -> str:
    """The good end that the provider tells, where it tells one."""
    return case.ends if case.ends in ("stop", "length", "toolUse") else "toolUse"


def anthropic_events(case: Case) -> list[dict[str, Any]]:
    """A start for each block, its deltas by index, and all stops before the end."""
    text_index = 9
    starts: dict[int, dict[str, Any]] = {}
    events: list[dict[str, Any]] = []

    def open_block(index: int, block: dict[str, Any]) -> None:
        if index not in starts:
            starts[index] = block
            start = {"type": "content_block_start", "index": index, "content_block": block}
            events.append(start)

    for act in case.acts:
        match act:
            case Say(piece):
                open_block(text_index, {"type": "text", "text": ""})
                delta = {"type": "text_delta", "text": piece}
                events.append({"type": "content_block_delta", "index": text_index, "delta": delta})
            case Call(slot, id_, name):
                open_block(slot, {"type": "tool_use", "id": id_, "name": name, "input": {}})
            case Arguments(slot, fragment):
                delta = {"type": "input_json_delta", "partial_json": fragment}
                events.append({"type": "content_block_delta", "index": slot, "delta": delta})
            case Break(error):
                message = {"type": "overloaded_error", "message": error}
                return [*events, *([{"type": "error", "error": message}] if error else [])]
    reason = {"stop": "end_turn", "length": "max_tokens", "toolUse": "tool_use"}[told_end(case)]
    return [
        *events,
        *({"type": "content_block_stop", "index": index} for index in starts),
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ]


def anthropic_wire(case: Case) -> bytes:
    start = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 7}}}
    events = anthropic_events(case)
    if not (events and events[0]["type"] == "error") and events:
        events = [start, *events]
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
        for event in events
    ).encode()


def openai_wire(case: Case) -> bytes:
    payloads: list[object] = []

    def choice(delta: dict[str, Any], finish_reason: str | None = None) -> None:
        payloads.append({"choices": [{"delta": delta, "finish_reason": finish_reason}]})

    def tool(call: dict[str, Any]) -> None:
        choice({"tool_calls": [call]})

    broken = False
    for act in case.acts:
        match act:
            case Say(piece):
                choice({"content": piece})
            case Call(slot, id_, name):
                tool({"index": slot, "id": id_, "type": "function", "function": {"name": name}})
            case Arguments(slot, fragment):
                tool({"index": slot, "function": {"arguments": fragment}})
            case Break(error):
                broken = True
                if error:
                    payloads.append({"error": {"message": error}})
    if not broken:
        finish = {"stop": "stop", "length": "length", "toolUse": "tool_calls"}[told_end(case)]
        choice({}, finish)
        payloads.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    lines = [json.dumps(payload, ensure_ascii=False) for payload in payloads]
    return "".join(
        f"data: {line}\n\n" for line in [*lines, *([] if broken else ["[DONE]"])]
    ).encode()


WRITE: dict[Format, Callable[[Case], bytes]] = {
    "anthropic": anthropic_wire,
    "openai": openai_wire,
}


# The models, over a client without a network


class Body(httpx.AsyncByteStream):
    def __init__(self, *reads: bytes, stalls: bool = False) -> None:
        self.reads, self.stalls, self.closed = reads, stalls, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for read in self.reads:
            yield read
        if self.stalls:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


def model_of(form: Format, body: Body, status: int = 200) -> Model:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, stream=body)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    if form == "anthropic":
        return AnthropicModel(api_key=KEY, model="test-model", client=client)
    transport = OpenAICompatibleTransport(
        base_url="https://provider.test/v1", api_key=KEY, client=client
    )
    return ProviderModel(transport, provider="openai", model="test-model")


def tell(model: Model) -> list[ModelEvent]:
    return run(soon(collect(model.stream(CONTEXT)), because="the stream must end by itself"))


def final(events: list[ModelEvent]) -> AssistantMessage:
    last = events[-1]
    assert isinstance(last, DoneEvent | ErrorEvent)
    return replace(last.message, timestamp=0)


# The behaviours


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_reply(case: Case, form: Format) -> None:
    """The same events and the same message, whole and cut every five bytes."""
    reply = WRITE[form](case)
    for reads in ([reply], pieces(reply, 5)):
        events = tell(model_of(form, Body(*reads)))

        assert_same(" ".join(event.type for event in events), case.events)
        message = final(events)
        assert_same((message.stop_reason, message.content), (case.ends, case.content))
        assert case.says in (message.error_message or "")
        assert_same(message.error_message is None, case.ends != "error")
        if not any(isinstance(act, Break) for act in case.acts):
            assert_same(message.usage, Usage(7, 2))


@pytest.mark.parametrize("form", FORMATS)
def test_same_partials(form: Format) -> None:
    """Each partial is what had arrived by then, and no later event changes it."""
    case = CASES[2]
    events = tell(model_of(form, Body(WRITE[form](case))))
    partials = [event.partial for event in events if not isinstance(event, DoneEvent | ErrorEvent)]
    started = ToolCall("call-1", "read", None, '{"path":')

    assert_same(partials[1], (started,))
    assert_same(partials[2], (started, TextContent("先读")))
    assert_same(partials[-1], case.content)


@pytest.mark.parametrize("form", FORMATS)
def test_same_abort(form: Format) -> None:
    """An abort in a stalled reply keeps the text, says `aborted` and closes the response."""
    case = Case("", (Say("正在"), Break()), "error", (), "")
    body = Body(WRITE[form](case), stalls=True)
    signal = AbortSignal()

    async def abort_in_the_text() -> list[ModelEvent]:
        events = []
        async for event in model_of(form, body).stream(CONTEXT, StreamOptions(signal)):
            events.append(event)
            if event.type == "text_delta":
                signal.abort("enough")
        return events

    message = final(run(soon(abort_in_the_text(), because="an abort does not wait for a server")))
    assert_same(
        (message.stop_reason, message.content, message.error_message),
        ("aborted", (TextContent("正在"),), "enough"),
    )
    assert_same(body.closed, True)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
def test_same_http_error(form: Format, status: int) -> None:
    """One `error` event with the status and the provider's words, and never the key."""
    body = Body(json.dumps({"error": {"type": "x", "message": f"no: {KEY}"}}).encode())
    events = tell(model_of(form, body, status))

    assert_same([event.type for event in events], ["error"])
    said = final(events).error_message or ""
    assert str(status) in said
    assert "no: [redacted]" in said
    assert KEY not in said
    assert_same(body.closed, True)
