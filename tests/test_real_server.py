"""The chapter-05 model against a real HTTP server on loopback: sockets, chunks, a closed line."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grader.checkpoint import compose_target
from grader.course import load_course

ROOT = Path(__file__).parents[1]
KEY = "test-key"
REPLY = (
    'data: {"choices":[{"delta":{"content":"先读"}}]}\r\n\r\n'
    'data: {"choices":[{"delta":{"tool_calls":[{"index":4,"id":"call-1",'
    r'"function":{"name":"read","arguments":"{\"path\":"}}]}}]}'
    "\r\n\r\n"
    'data: {"choices":[{"delta":{"tool_calls":[{"index":4,'
    r'"function":{"arguments":"\"README.md\"}"}}]}}]}'
    "\r\n\r\n"
    'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\r\n\r\n'
    'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}'
    "\r\n\r\n"
    "data: [DONE]\r\n\r\n"
)

# The learner's package is not importable here, and shouldn't be: it runs in a process of its own.
CLIENT = """
import asyncio, json, sys
from mini_agent.abort import AbortSignal
from mini_agent.model import StreamOptions
from mini_agent.provider_adapter import ProviderModel
from mini_agent.providers.openai_compatible import OpenAICompatibleTransport
from mini_agent.types import AgentContext, ToolDefinition, text_of, tool_calls, user_message

async def ask(base_url, abort_at_text):
    transport = OpenAICompatibleTransport(base_url=base_url, api_key="test-key")
    model = ProviderModel(transport, provider="test", model="test-model")
    tool = ToolDefinition("read", "Read a file.", {"type": "object"})
    context = AgentContext((user_message("读取 README.md", 1),), tools=(tool,))
    signal = AbortSignal()
    stream = model.stream(context, StreamOptions(signal=signal))
    events = []
    async for event in stream:
        events.append(event.type)
        if abort_at_text and event.type == "text_delta":
            signal.abort()
    message = await stream.result()
    return {
        "events": events,
        "stop_reason": message.stop_reason,
        "text": text_of(message),
        "calls": [[call.id, call.name, call.arguments] for call in tool_calls(message)],
        "total": message.usage.total,
        "error": message.error_message,
    }

print(json.dumps(asyncio.run(ask(sys.argv[1], sys.argv[2:] == ["abort"]))))
"""


class Provider(ThreadingHTTPServer):
    """A provider on a free port of 127.0.0.1. The first part of the path says how it behaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.line_closed = threading.Event()

    def url(self, behaviour: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{behaviour}/v1/"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append(
            {
                "path": self.path,
                "authorization": self.headers["authorization"],
                "accept": self.headers["accept"],
                "body": json.loads(body),
            }
        )
        behaviour = self.path.split("/")[1]
        if behaviour == "refuse":
            answer = json.dumps({"error": {"message": f"Incorrect API key: {KEY}"}}).encode()
            self.send_response(401)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        reply = REPLY.encode()
        whole = behaviour == "answer"
        end = len(reply) if whole else reply.index(b"data: ", 1) + 10
        for at in range(0, end, 7):  # a chunk that ends inside characters, lines and line ends
            piece = reply[at : min(at + 7, end)]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        elif behaviour == "stall":
            self.connection.settimeout(10)
            if self.connection.recv(1) == b"":  # the other side hung up
                self.server.line_closed.set()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the test's output is the test's."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    course = load_course(ROOT)
    directory = tmp_path_factory.mktemp("target")
    compose_target(course, course.chapter("05"), directory)
    return directory


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(package: Path, base_url: str, *arguments: str) -> dict[str, Any]:
    """One reply of the chapter's model, in a process of its own and without a proxy."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", CLIENT, base_url, *arguments],
        env={**os.environ, "PYTHONPATH": str(package), "NO_PROXY": "*", "no_proxy": "*"},
        capture_output=True,
        encoding="utf-8",
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_reply_over_real_sockets(package: Path, provider: Provider) -> None:
    """The whole call, from the request on the wire to the parsed tool call."""
    assert ask(package, provider.url("answer")) == {
        "events": [
            "start",
            "text_delta",
            "toolcall_delta",
            "toolcall_delta",
            "toolcall_end",
            "done",
        ],
        "stop_reason": "toolUse",
        "text": "先读",
        "calls": [["call-1", "read", {"path": "README.md"}]],
        "total": 9,
        "error": None,
    }
    function = {"name": "read", "description": "Read a file.", "parameters": {"type": "object"}}
    assert provider.requests == [
        {
            "path": "/answer/v1/chat/completions",
            "authorization": f"Bearer {KEY}",
            "accept": "text/event-stream",
            "body": {
                "model": "test-model",
                "messages": [{"role": "user", "content": "读取 README.md"}],
                "tools": [{"type": "function", "function": function}],
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        }
    ]


def test_an_abort_hangs_up_on_a_server_that_stalls(package: Path, provider: Provider) -> None:
    """The abort ends the reply at once, and the server sees the connection close."""
    answer = ask(package, provider.url("stall"), "abort")

    assert (answer["stop_reason"], answer["text"]) == ("aborted", "先读")
    assert provider.line_closed.wait(10)


def test_a_line_that_breaks_keeps_the_partial(package: Path, provider: Provider) -> None:
    """The server dies in the middle of a message: an error, with the text that had come."""
    answer = ask(package, provider.url("break"))

    assert (answer["stop_reason"], answer["text"]) == ("error", "先读")
    assert "peer closed connection" in answer["error"]


def test_a_refusal_says_why_and_hides_the_key(package: Path, provider: Provider) -> None:
    """HTTP 401: the provider's words reach the user, the key in them doesn't."""
    answer = ask(package, provider.url("refuse"))

    assert answer["events"] == ["error"]
    assert answer["error"] == "Provider returned HTTP 401: Incorrect API key: [redacted]"
