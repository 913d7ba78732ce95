"""Chapter 10, stretch: what real servers do beyond the recorded reply."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.testing import aiter_of, assert_same, collect, pieces, run, soon
from mini_agent.abort import AbortSignal
from mini_agent.events import DoneEvent, ErrorEvent, ModelEvent, TextDeltaEvent, ToolCallDeltaEvent
from mini_agent.model import StreamOptions
from mini_agent.providers.anthropic import AnthropicModel, to_request_body, to_stream_events
from mini_agent.providers.recorded_stream import RECORDED_RESPONSE
from mini_agent.providers.select import choose_model
from mini_agent.sse import decode_chunks, read_sse_messages
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    assistant_message,
    text,
    text_of,
    tool_calls,
    user_message,
)

CONTEXT = AgentContext((user_message("算一下 12*8", 1),))
RECORDED = RECORDED_RESPONSE.encode()

Event = tuple[str, Mapping[str, Any]]


def wire(*events: Event) -> bytes:
    return "".join(
        f"event: {name}\ndata: {json.dumps({'type': name} | dict(payload), ensure_ascii=False)}\n\n"
        for name, payload in events
    ).encode()


def start(index: int, **block: Any) -> Event:
    return "content_block_start", {"index": index, "content_block": block}


def delta(index: int, **change: Any) -> Event:
    return "content_block_delta", {"index": index, "delta": change}


def stop(index: int) -> Event:
    return "content_block_stop", {"index": index}


def started(**usage: int | None) -> Event:
    return "message_start", {"message": {"id": "msg_1", "usage": usage}}


def ended(reason: str | None = "end_turn", **usage: int | None) -> tuple[Event, Event]:
    return ("message_delta", {"delta": {"stop_reason": reason}, "usage": usage}), (
        "message_stop",
        {},
    )


def said(index: int, *parts: str) -> list[Event]:
    """A whole text block."""
    deltas = [delta(index, type="text_delta", text=part) for part in parts]
    return [start(index, type="text", text=""), *deltas, stop(index)]


def called(index: int, id: str, name: str, *fragments: str) -> list[Event]:
    """A whole tool call."""
    deltas = [delta(index, type="input_json_delta", partial_json=part) for part in fragments]
    return [start(index, type="tool_use", id=id, name=name, input={}), *deltas, stop(index)]


def events_of(*reads: bytes) -> list[ModelEvent]:
    async def read() -> list[ModelEvent]:
        stream = to_stream_events(read_sse_messages(decode_chunks(aiter_of(*reads))))
        return await soon(collect(stream), because="the stream must end")

    return run(read())


def last_of(*reads: bytes) -> DoneEvent | ErrorEvent:
    last = events_of(*reads)[-1]
    assert isinstance(last, DoneEvent | ErrorEvent)
    return last


def whole(*reads: bytes) -> AssistantMessage:
    """The message of a reply that must end in `done`."""
    last = last_of(*reads)
    assert isinstance(last, DoneEvent), last
    return last.message


def broken(*reads: bytes) -> tuple[str, tuple[object, ...]]:
    """What the error says and keeps, of a reply that must end in `error`."""
    last = last_of(*reads)
    assert isinstance(last, ErrorEvent), last
    return last.message.error_message or "", last.message.content


RECORDED_CONTENT = whole(RECORDED).content


# Framing


@pytest.mark.parametrize("line_end", ["\r\n", "\r"])
def test_framing_with_other_line_ends(line_end: str) -> None:
    """CRLF and CR end lines as LF does, also where a cut falls between CR and LF."""
    reply = RECORDED_RESPONSE.replace("\n", line_end).encode()
    for size in (1, 2, 37, len(reply)):
        assert_same(whole(*pieces(reply, size)).content, RECORDED_CONTENT)


@given(st.lists(st.integers(0, len(RECORDED)), min_size=2, max_size=6).map(sorted))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_framing_at_any_set_of_cuts(cuts: list[int]) -> None:
    """Several cuts at once, empty reads included."""
    edges = [0, *cuts, len(RECORDED)]
    reads = [RECORDED[a:b] for a, b in itertools.pairwise(edges)]
    assert_same(whole(*reads).content, RECORDED_CONTENT)


def test_framing_habits_of_proxies() -> None:
    """A BOM, comments, no space after the colon, no last blank line, and no `event:` lines."""
    for reply in (
        b"\xef\xbb\xbf" + RECORDED,
        b": keep-alive\n\n" + RECORDED.replace(b"\n\n", b"\n\n: ping\n\n"),
        RECORDED.replace(b": ", b":"),
        RECORDED.rstrip(b"\n"),
        b"\n".join(x for x in RECORDED.split(b"\n") if not x.startswith(b"event:")),
        RECORDED.replace(b'"index":0,', b'"index":0,\ndata: '),
        RECORDED.replace(b"}\n\n", b"}     \n\n"),
    ):
        for size in (1, 37, 5000):
            assert_same(whole(*pieces(reply, size)).content, RECORDED_CONTENT)


def test_framing_line_separators_inside_a_string() -> None:
    """U+2028, U+2029 and U+0085 are no line ends, and JSON may hold them as they are."""
    odd = "a\u2028b\u0085c\u2029d"
    reply = wire(started(), *said(0, odd), *ended())
    assert odd.encode() in reply
    assert_same(text_of(whole(reply)), odd)


# Events


def test_events_unknown_to_us_do_no_harm() -> None:
    """`ping` and what may come are skipped, their data unread; so are unknown fields."""
    strange = b"event: ping\ndata: not json\n\nevent: weather\ndata: {\ndata: }\n\n"
    reply = RECORDED.replace(b"event: ", strange + b"event: ").replace(
        b'{"type"', b'{"seen":null,"type"'
    )
    assert_same(whole(reply).content, RECORDED_CONTENT)


def test_events_text_inside_a_start_is_a_first_delta() -> None:
    """So the deltas always add up to the text."""
    reply = wire(
        started(),
        start(0, type="text", text="这个"),
        delta(0, type="text_delta", text="我算。"),
        stop(0),
        *ended(),
    )
    deltas = [event.delta for event in events_of(reply) if isinstance(event, TextDeltaEvent)]
    assert_same(deltas, ["这个", "我算。"])
    assert_same(text_of(whole(reply)), "这个我算。")


def test_events_several_tools_in_one_reply() -> None:
    """Each call has its own arguments. Real streams begin with an empty fragment, which is none."""
    reply = wire(
        started(),
        *said(0, "都做。"),
        *called(1, "t1", "add", "", '{"a": 2', "}"),
        *called(2, "t2", "now", ""),
        *called(3, "t3", "add", "", '{"a": 3}'),
        *ended("tool_use"),
    )
    calls = tool_calls(whole(reply))
    assert_same(
        [(call.id, call.name, call.arguments) for call in calls],
        [("t1", "add", {"a": 2}), ("t2", "now", {}), ("t3", "add", {"a": 3})],
    )
    deltas = [event.delta for event in events_of(reply) if isinstance(event, ToolCallDeltaEvent)]
    assert_same("".join(deltas), '{"a": 2}{"a": 3}')


def test_events_of_blocks_that_are_not_kept() -> None:
    """Thinking, signatures, redacted thinking and the server's own tools are skipped whole."""
    reply = wire(
        started(),
        start(0, type="thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="12*8 is 96"),
        delta(0, type="signature_delta", signature="EuYB"),
        stop(0),
        start(1, type="redacted_thinking", data="EmwK"),
        stop(1),
        start(2, type="server_tool_use", id="srv1", name="web_search", input={}),
        delta(2, type="input_json_delta", partial_json='{"query": "12'),
        stop(2),
        start(3, type="web_search_tool_result", tool_use_id="srv1", content=[{"type": "x"}]),
        stop(3),
        start(4, type="text", text=""),
        delta(4, type="citations_delta", citation={"type": "char_location"}),
        delta(4, type="text_delta", text="96"),
        stop(4),
        *ended(),
    )
    assert_same(whole(reply).content, (TextContent("96"),))
    places = {
        event.content_index for event in events_of(reply) if isinstance(event, TextDeltaEvent)
    }
    assert_same(sorted(places), [0])


def test_events_reused_index_opens_another_block() -> None:
    """A second start on an index, its stop missing, never joins two argument texts."""
    first = called(0, "t1", "add", '{"a":1}')[:-1]
    reply = wire(started(), *first, *called(0, "t2", "add", '{"a":2}'), *ended("tool_use"))
    assert_same([call.arguments for call in tool_calls(whole(reply))], [{"a": 1}, {"a": 2}])


def test_events_input_that_comes_whole_at_the_start() -> None:
    """Some servers that imitate the API send no fragments; the deltas still add up."""
    reply = wire(
        started(),
        start(0, type="tool_use", id="t1", name="say", input={"a": "好"}),
        stop(0),
        start(1, type="tool_use", id="t2", name="now", input=None),
        stop(1),
        start(2, type="tool_use", id="t3", name="now"),
        stop(2),
        start(3, type="tool_use", id="t4", name="say", input={"a": "old"}),
        delta(3, type="input_json_delta", partial_json='{"a": 1}'),
        stop(3),
        *ended("tool_use"),
    )
    calls = tool_calls(whole(reply))
    assert_same([call.arguments for call in calls], [{"a": "好"}, {}, {}, {"a": 1}])
    deltas = [event.delta for event in events_of(reply) if isinstance(event, ToolCallDeltaEvent)]
    assert_same(deltas, ['{"a": "好"}', '{"a": 1}'])


def test_events_without_a_stop_for_the_last_block() -> None:
    """message_stop ends what is open: a complete call is a call."""
    unstopped = called(0, "t1", "add", '{"a":1}')[:-1]
    reply = wire(started(), *unstopped, *ended("tool_use"))
    assert_same([call.arguments for call in tool_calls(whole(reply))], [{"a": 1}])

    cut_off = whole(wire(started(), *called(0, "t1", "add", '{"a":')[:-1], *ended("max_tokens")))
    assert_same([call.arguments for call in tool_calls(cut_off)], [None])


# Usage


def test_usage_of_nulls_and_missing_fields_stays() -> None:
    """message_delta replaces only the counts that it gives."""
    first = started(
        input_tokens=7, output_tokens=1, cache_read_input_tokens=3, cache_creation_input_tokens=None
    )
    reply = wire(
        first,
        *said(0, "好"),
        *ended(input_tokens=None, output_tokens=9, cache_read_input_tokens=None),
    )
    assert_same(whole(reply).usage, Usage(input=7, output=9, cache_read=3))

    later = wire(first, *said(0, "好"), *ended(cache_creation_input_tokens=2, input_tokens=0))
    assert_same(whole(later).usage, Usage(input=0, output=1, cache_read=3, cache_write=2))

    bare_starts: list[Mapping[str, Any]] = [{}, {"message": {}}]
    for bare in bare_starts:
        assert_same(whole(wire(("message_start", bare), *said(0, "好"), *ended())).usage, Usage())
    bare_end: Event = ("message_delta", {"usage": {"output_tokens": 4}})
    again = wire(first, *said(0, "好"), bare_end, *ended())
    assert_same(whole(again).usage, Usage(input=7, output=4, cache_read=3))


def test_usage_of_a_failed_reply_is_counted() -> None:
    """What was paid for is told, whatever the end."""
    last = last_of(wire(started(input_tokens=7, output_tokens=1), *said(0, "好")))
    assert_same(last.message.usage, Usage(7, 1))


# Failures


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (delta(0, type="text_delta", text=42), "content_block_delta.delta.text"),
        (delta(0, type="input_json_delta", partial_json="{}"), "content_block_delta.delta.type"),
        (delta(5, type="text_delta", text="x"), "content_block_delta.index"),
        (("content_block_delta", {"delta": {}}), "content_block_delta.index"),
        (("content_block_delta", {"index": True, "delta": {}}), "content_block_delta.index"),
        (("content_block_delta", {"index": -1, "delta": {}}), "content_block_delta.index"),
        (("content_block_delta", {"index": 0, "delta": None}), "content_block_delta.delta"),
        (("content_block_start", {"index": 1}), "content_block_start.content_block"),
        (start(1, type="text", text=3), "content_block_start.content_block.text"),
        (start(1, type="tool_use", id=None, name="a"), "content_block_start.content_block.id"),
        (start(1, type="tool_use", id="t1"), "content_block_start.content_block.name"),
        (
            start(1, type="tool_use", id="t1", name="a", input=[1]),
            "content_block_start.content_block.input",
        ),
        (("content_block_stop", {}), "content_block_stop.index"),
        (("message_start", {"message": 1}), "message_start.message"),
        (
            ("message_start", {"message": {"usage": {"input_tokens": -1}}}),
            "message_start.message.usage.input_tokens",
        ),
        (("message_delta", {"delta": 1}), "message_delta.delta"),
        (("message_delta", {"delta": {"stop_reason": 3}}), "message_delta.delta.stop_reason"),
        (("message_delta", {"delta": {}, "usage": 1}), "message_delta.usage"),
        (
            ("message_delta", {"delta": {}, "usage": {"output_tokens": "9"}}),
            "message_delta.usage.output_tokens",
        ),
    ],
)
def test_failure_of_a_field_is_named(bad: Event, named: str) -> None:
    """A field that is not as it must be ends the reply in an error that names it."""
    reply = wire(started(), start(0, type="text", text="好"), bad, stop(0), *ended())
    message, content = broken(reply)
    assert f" {named} must be " in message, message
    assert_same(content[:1], (TextContent("好"),))


def test_failure_of_a_reply_without_a_stop_reason() -> None:
    """message_stop with a reason that is null or missing is no good end."""
    for reply in (
        wire(started(), *said(0, "好"), *ended(None)),
        wire(started(), *said(0, "好"), ("message_stop", {})),
    ):
        message, content = broken(reply)
        assert "reason" in message, message
        assert_same(content, (TextContent("好"),))


def test_stop_reason_is_not_wiped() -> None:
    """A later message_delta without a reason leaves the one that came, and takes the counts."""
    (reason, last), (counts, _) = ended("tool_use", output_tokens=3), ended(None, output_tokens=9)
    call = called(0, "t1", "add", '{"a":1}')
    message = whole(wire(started(input_tokens=7), *call, reason, counts, last))
    assert_same((message.stop_reason, message.usage), ("toolUse", Usage(7, 9)))

    half = called(0, "t1", "add", '{"a":')
    limit, _ = ended("max_tokens")
    assert_same(whole(wire(started(), *half, counts, limit, last)).stop_reason, "length")


def test_failure_of_an_empty_stream() -> None:
    """No event at all is an error, and nothing had begun."""
    assert_same([event.type for event in events_of()], ["error"])
    assert_same([event.type for event in events_of(b": only a comment\n\n")], ["error"])


def test_failure_of_arguments_is_told_even_if_nothing_follows() -> None:
    """Broken arguments are the error, and not the missing message_stop behind them."""
    message, _ = broken(wire(started(), *called(0, "t1", "add", '{"a":')))
    assert '{"a":' in message, message


def test_failure_without_an_event_line() -> None:
    """An error is known by its payload's type, too."""
    error = {"type": "error", "error": {"type": "api_error", "message": "Internal"}}
    message, _ = broken(wire(started()) + f"data: {json.dumps(error)}\n\n".encode())
    assert "Internal" in message, message


def test_failure_nothing_after_the_end_is_read() -> None:
    """message_stop ends the reply, even if the server goes on or never closes."""
    assert_same(whole(RECORDED + b"event: error\ndata: {}\n\n").content, RECORDED_CONTENT)


# The request


def body_of(*messages: Any) -> list[dict[str, Any]]:
    context = AgentContext(tuple(messages))
    written: list[dict[str, Any]] = to_request_body(context, model="m", max_tokens=1)["messages"]
    return written


def blocks_of(messages: Iterable[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [block for message in messages for block in message["content"] if block["type"] == kind]


def test_request_ids_are_unique_and_paired() -> None:
    """Other providers repeat ids in each turn, or differ in characters that are not allowed."""
    turns: list[Any] = [user_message("x", 1)]
    for at, given_id in enumerate(("call-1", "call-1", "call-1", "", "a|b", "a:b", "q" * 90)):
        call = ToolCall(given_id, "add", {"a": at})
        turns += [
            assistant_message([call], "toolUse"),
            ToolResultMessage(given_id, "add", (text("r"),)),
        ]
    messages = body_of(*turns)
    ids = [block["id"] for block in blocks_of(messages, "tool_use")]
    assert_same(len(set(ids)), 7, because=f"the API wants each id once: {ids}")
    assert_same([block["tool_use_id"] for block in blocks_of(messages, "tool_result")], ids)
    assert all(len(each) <= 64 for each in ids)
    assert_same(ids[0], "call-1", because="an id that is fine stays as it is")
    assert all(ids), ids
    late = body_of(user_message("x", 1), ToolResultMessage("a|b", "add", (text("r"),)))
    assert_same([block["tool_use_id"] for block in blocks_of(late, "tool_result")], ["a_b"])


def test_request_without_the_calls_of_a_failed_reply() -> None:
    """A reply that broke off keeps its text; a call that nobody answered would be refused."""
    half = ToolCall("call-1", "add", None, '{"a"')
    messages = body_of(
        user_message("x", 1),
        assistant_message([text("先算"), half], "aborted", error_message="stopped"),
        user_message("y", 2),
        assistant_message([], "error", error_message="HTTP 500"),
        user_message("z", 3),
    )
    assert_same([message["role"] for message in messages], ["user", "assistant", "user"])
    assert_same(blocks_of(messages, "tool_use"), [])
    assert_same(len(messages[-1]["content"]), 2)


def test_request_shares_nothing_with_the_context() -> None:
    """Who changes the body changes no message: dicts are the only thing that could be shared."""
    call = ToolCall("call-1", "add", {"a": [1]})
    messages = body_of(user_message("x", 1), assistant_message([call], "toolUse"))
    blocks_of(messages, "tool_use")[0]["input"]["a"].append(2)
    assert_same(call.arguments, {"a": [1]})


# HTTP


class Reads(httpx.AsyncByteStream):
    def __init__(self, *reads: bytes, error: Exception | None = None, stalls: bool = False) -> None:
        self.reads, self.error, self.stalls = reads, error, stalls
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for read in self.reads:
            yield read
        if self.error is not None:
            raise self.error
        if self.stalls:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


def model_over(reads: Reads, status: int = 200) -> tuple[AnthropicModel, list[httpx.Request]]:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(status, stream=reads)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    model = AnthropicModel(api_key="test-key", model="m", max_tokens=1, client=client)
    return model, requests


def test_http_connection_cut_in_the_middle() -> None:
    """The error names the cause, and the partial stays."""
    begun = wire(started(), start(0, type="text", text="好"))
    reads = Reads(begun, error=httpx.ReadError("connection reset"))
    events = run(collect(model_over(reads)[0].stream(CONTEXT)))
    last = events[-1]
    assert isinstance(last, ErrorEvent)
    assert "connection reset" in (last.message.error_message or "")
    assert_same(last.message.content, (TextContent("好"),))
    assert_same(reads.closed, True)


def test_http_reader_that_stops_early_closes_the_response() -> None:
    """Leaving `async with` is enough: no task and no connection stays."""
    reads = Reads(wire(started(), start(0, type="text", text="好")), stalls=True)

    async def look_and_leave() -> None:
        async with model_over(reads)[0].stream(CONTEXT) as stream:
            async for _ in stream:
                break

    run(soon(look_and_leave(), because="closing a stream ends its reading"))
    assert_same(reads.closed, True)


def test_http_reply_is_done_at_message_stop() -> None:
    """A server that doesn't close the connection doesn't hold the reply."""
    reads = Reads(RECORDED, stalls=True)
    model, _ = model_over(reads)
    message = run(soon(model.stream(CONTEXT).result(), because="message_stop is the end"))
    assert_same(message.content, RECORDED_CONTENT)
    assert_same(reads.closed, True)


def test_http_abort_before_anything_is_sent() -> None:
    """An aborted signal is one event, without `start`, and no request."""
    signal = AbortSignal()
    signal.abort("stop")
    model, requests = model_over(Reads(RECORDED))
    events = run(collect(model.stream(CONTEXT, StreamOptions(signal))))
    assert_same([event.type for event in events], ["error"])
    assert_same(requests, [])


def test_http_timeouts_fit_slow_models() -> None:
    """httpx's own limit of 5 seconds would end a reply that is being thought about."""
    model, requests = model_over(Reads(RECORDED))
    run(collect(model.stream(CONTEXT)))
    timeout = requests[0].extensions["timeout"]
    assert timeout["read"] >= 60
    assert 1 <= timeout["connect"] <= 60

    own = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(500)), timeout=3)
    sent: list[httpx.Request] = []

    async def note(request: httpx.Request) -> None:
        sent.append(request)

    own.event_hooks["request"].append(note)
    run(collect(AnthropicModel(api_key="test-key", client=own).stream(CONTEXT)))
    assert_same(sent[0].extensions["timeout"]["read"], 3, because="a caller's own limit is kept")


def test_http_half_an_emoji_is_sent() -> None:
    """Models write it, at the end of a delta; the conversation goes on."""
    model, requests = model_over(Reads(RECORDED))
    context = AgentContext((user_message("\ud83d\ude00 \ud83d", 1),))
    run(collect(model.stream(context)))
    sent = json.loads(requests[0].content)["messages"][0]["content"][0]["text"]
    assert_same(sent, "\U0001f600 \ufffd")


def test_http_error_bodies() -> None:
    """Whatever stands in the body of an error, the status is told, and no more than a page."""
    for body, part in (
        (b"", "Internal Server Error"),
        (b"\xff\xfe", "\ufffd"),
        (b'{"detail":"down"}', "down"),
        (b'["down"]', "down"),
        ('{"error":"停机"}'.encode(), "停机"),
        (b'{"error":{"type":"api_error","message":"down"}}', "HTTP 500: api_error: down"),
        (b'{"error":{"message":"down"}}', "HTTP 500: down"),
        (b"x" * 200_000, "xxx"),
    ):
        last = run(collect(model_over(Reads(*pieces(body, 1000)), 500)[0].stream(CONTEXT)))[-1]
        assert isinstance(last, ErrorEvent)
        said = last.message.error_message or ""
        assert "500" in said
        assert part in said
        assert len(said) < 5_000

    reads = Reads(b"half of it", error=httpx.ReadError("connection reset"))
    last = run(collect(model_over(reads, 500)[0].stream(CONTEXT)))[-1]
    assert isinstance(last, ErrorEvent)
    assert "500: half of it" in (last.message.error_message or "")


def test_http_answer_that_is_no_event_stream() -> None:
    """A page or a plain JSON object with status 200 is an error that says what came."""
    for content_type, body, part in (
        ("application/json", b'{"error":{"message":"no such model"}}', "no such model"),
        ("text/html; charset=utf-8", b"<h1>Please log in</h1>", "Please log in"),
        ("Application/JSON", b'{"content":[]}', "200"),
    ):
        last = run(collect(model_of_type(content_type, body).stream(CONTEXT)))[-1]
        assert isinstance(last, ErrorEvent)
        assert part in (last.message.error_message or "")
    events = run(collect(model_of_type("text/plain", RECORDED).stream(CONTEXT)))
    assert_same(events[-1].type, "done", because="a stream with another type is read all the same")


def model_of_type(content_type: str, body: bytes) -> AnthropicModel:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": content_type}, content=body)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return AnthropicModel(api_key="test-key", client=client)


def test_message_is_signed_with_provider_and_model() -> None:
    """Who answered stands in the message, at a time that the clock gave."""
    stream = to_stream_events(
        read_sse_messages(decode_chunks(aiter_of(RECORDED))), model="m1", clock=lambda: 5
    )
    message = run(stream.result())
    assert_same((message.provider, message.model, message.timestamp), ("anthropic", "m1", 5))

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Reads(RECORDED))

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    model = AnthropicModel(api_key="test-key", model="m2", client=client, clock=lambda: 6)
    message = run(model.stream(CONTEXT).result())
    assert_same((message.provider, message.model, message.timestamp), ("anthropic", "m2", 6))


# The choice


def test_choice_shows_no_password_of_a_url() -> None:
    """A URL may hold one; of it only the host is told, and a broken one is no crash."""
    for url in ("https://user:secret@proxy.test/v1?token=secret", "http://[secret", ""):
        for kind in ("ANTHROPIC", "OPENAI"):
            env = {f"{kind}_API_KEY": "test-key", f"{kind}_BASE_URL": url}
            assert "secret" not in choose_model(env).reason
