"""`python -m mini_agent` at the end of the course, against real HTTP servers on loopback.

One server speaks both wire formats, and asks for the tool that the agent then runs: the same
conversation, whoever answers.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grader.checkpoint import compose_target
from grader.course import load_course

ROOT = Path(__file__).parents[1]
KEY = "test-key"
QUESTION = "算一下 12*8"
ARGUMENTS = '{"expression":"12*8"}'


def anthropic_reply(*events: tuple[str, Mapping[str, Any]]) -> bytes:
    payloads = [{"type": name} | dict(data) for name, data in events]
    return "".join(
        f"event: {payload['type']}\r\ndata: {json.dumps(payload, ensure_ascii=False)}\r\n\r\n"
        for payload in payloads
    ).encode()


def anthropic_text(index: int, *pieces: str) -> list[tuple[str, Mapping[str, Any]]]:
    start = {"index": index, "content_block": {"type": "text", "text": ""}}
    deltas = [
        ("content_block_delta", {"index": index, "delta": {"type": "text_delta", "text": piece}})
        for piece in pieces
    ]
    return [("content_block_start", start), *deltas, ("content_block_stop", {"index": index})]


def anthropic_call(index: int, *fragments: str) -> list[tuple[str, Mapping[str, Any]]]:
    block = {"type": "tool_use", "id": "toolu_1", "name": "calc", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", *fragments)]
    return [
        ("content_block_start", {"index": index, "content_block": block}),
        ("ping", {}),
        *(("content_block_delta", {"index": index, "delta": delta}) for delta in deltas),
        ("content_block_stop", {"index": index}),
    ]


def anthropic_end(reason: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [
        ("message_delta", {"delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}),
        ("message_stop", {}),
    ]


ANTHROPIC_START = ("message_start", {"message": {"id": "m", "usage": {"input_tokens": 20}}})
ANTHROPIC_CALL = anthropic_reply(
    ANTHROPIC_START,
    *anthropic_text(0, "这个我", "算一下。"),
    *anthropic_call(1, ARGUMENTS[:8], ARGUMENTS[8:]),
    *anthropic_end("tool_use"),
)
ANTHROPIC_ANSWER = anthropic_reply(
    ANTHROPIC_START, *anthropic_text(0, "12*8 ", "等于 96。"), *anthropic_end("end_turn")
)


def openai_reply(*payloads: Mapping[str, Any]) -> bytes:
    lines = [*(json.dumps(payload, ensure_ascii=False) for payload in payloads), "[DONE]"]
    return "".join(f"data: {line}\r\n\r\n" for line in lines).encode()


def openai_delta(finish_reason: str | None = None, **delta: Any) -> Mapping[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def openai_call(arguments: str, **call: Any) -> Mapping[str, Any]:
    function = {"arguments": arguments} | ({"name": "calc"} if call else {})
    return openai_delta(tool_calls=[{"index": 0, **call, "function": function}])


OPENAI_USAGE = {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 5}}
OPENAI_CALL = openai_reply(
    openai_delta(role="assistant", content="这个我"),
    openai_delta(content="算一下。"),
    openai_call(ARGUMENTS[:8], id="call-1"),
    openai_call(ARGUMENTS[8:]),
    openai_delta("tool_calls"),
    OPENAI_USAGE,
)
OPENAI_ANSWER = openai_reply(
    openai_delta(content="12*8 "),
    openai_delta(content="等于 96。"),
    openai_delta("stop"),
    OPENAI_USAGE,
)

# What the agent prints for this conversation, from either server.
CONVERSATION = f"""\
这个我算一下。
[tool call] calc {ARGUMENTS}
[tool result] calc: 96
12*8 等于 96。
[usage] 2 turns, 40 tokens in, 10 out
"""


class Server(ThreadingHTTPServer):
    """A provider on a free port of 127.0.0.1. The first part of the path says how it behaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.stalling = threading.Event()
        self.line_closed = threading.Event()

    def url(self, behaviour: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{behaviour}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers, body))
        behaviour = self.path.split("/")[1]
        anthropic = self.path.endswith("/v1/messages")
        if behaviour == "refuse":
            error = {"type": "authentication_error", "message": f"invalid x-api-key {KEY}"}
            self.answer(401, json.dumps({"type": "error", "error": error}).encode())
        elif anthropic:
            answered = body["messages"][-1]["content"][0]["type"] == "tool_result"
            self.stream(ANTHROPIC_ANSWER if answered else ANTHROPIC_CALL, behaviour)
        else:
            answered = body["messages"][-1]["role"] == "tool"
            self.stream(OPENAI_ANSWER if answered else OPENAI_CALL, behaviour)

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, reply: bytes, behaviour: str) -> None:
        """The reply in chunks of seven bytes, which end in characters, lines and line ends."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end = len(reply) if behaviour == "answer" else reply.index("算一下".encode()) + 30
        for at in range(0, end, 7):
            piece = reply[at : min(at + 7, end)]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if behaviour == "answer":
            self.wfile.write(b"0\r\n\r\n")
            return
        if behaviour == "stall":
            self.server.stalling.set()
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
    compose_target(course, course.chapter("10"), directory)
    return directory


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def environment(package: Path, **settings: str) -> dict[str, str]:
    """No key and no proxy of this machine, and the package of this test."""
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    return {**kept, "PYTHONPATH": str(package), "HOME": str(package / "home"), **settings}


def converse(
    package: Path, settings: Mapping[str, str], question: str = QUESTION
) -> tuple[int, str, str]:
    """One question through a pipe: the exit code, and what stood on the two outputs."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", "mini_agent"],
        input=question + "\n",
        cwd=package,
        env=environment(package, **settings),
        capture_output=True,
        encoding="utf-8",
        timeout=30,
    )
    return done.returncode, done.stdout, done.stderr


def settings_for(kind: str, server: Server, behaviour: str) -> dict[str, str]:
    """The variables that choose this provider, with a model's name of our own."""
    if kind == "anthropic":
        chosen = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.url(behaviour)}
    else:
        chosen = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url(behaviour) + "/v1"}
    return chosen | {"MINI_AGENT_MODEL": "test-model"}


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_a_conversation_with_a_tool(package: Path, server: Server, kind: str) -> None:
    """Two requests, a tool in between, and the same screen whichever format is spoken."""
    assert converse(package, settings_for(kind, server, "answer")) == (0, CONVERSATION, "")

    (path, headers, first), (_, _, second) = server.requests
    assert first["model"] == "test-model"
    assert [len(first["messages"]), len(second["messages"])] == (
        [1, 3] if kind == "anthropic" else [2, 4]  # there the system prompt is a message
    )
    if kind == "anthropic":
        assert path == "/answer/v1/messages"
        assert headers["x-api-key"] == KEY
        assert headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in headers
        assert first["messages"] == [
            {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
        ]
        assert second["messages"][1:] == [
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "这个我算一下。"},
                    {
                        "type": "tool_use",
                        "id": "toolu_1",
                        "name": "calc",
                        "input": {"expression": "12*8"},
                    },
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "96"}],
            },
        ]
    else:
        assert path == "/answer/v1/chat/completions"
        assert headers["authorization"] == f"Bearer {KEY}"
        assert second["messages"][-1]["content"] == "96"


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_a_refusal_is_readable_and_shows_no_key(package: Path, server: Server, kind: str) -> None:
    """HTTP 401: the status and the provider's words, and exit code 1."""
    code, shown, errors = converse(package, settings_for(kind, server, "refuse"))

    assert (code, errors) == (1, "")
    assert "HTTP 401" in shown
    assert "invalid x-api-key" in shown
    assert KEY not in shown


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_a_line_that_breaks_keeps_the_text(package: Path, server: Server, kind: str) -> None:
    """The server dies in the middle of a reply: what it had said stays on the screen."""
    code, shown, errors = converse(package, settings_for(kind, server, "break"))

    assert (code, errors) == (1, "")
    assert shown.startswith("这个我")
    assert "[error] " in shown


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_nobody_there(package: Path, kind: str) -> None:
    """A server that is not running is one readable line."""
    base = "http://127.0.0.1:9"
    name = "ANTHROPIC" if kind == "anthropic" else "OPENAI"
    code, shown, errors = converse(package, {f"{name}_API_KEY": KEY, f"{name}_BASE_URL": base})

    assert (code, errors) == (1, "")
    assert shown.startswith("[error] ")
    assert KEY not in shown


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_ctrl_c_hangs_up_on_a_server_that_stalls(package: Path, server: Server, kind: str) -> None:
    """The turn ends at once, and the server sees the connection close."""
    with subprocess.Popen(
        [sys.executable, "-B", "-m", "mini_agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=package,
        env=environment(package, **settings_for(kind, server, "stall")),
        encoding="utf-8",
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(QUESTION + "\n")
        agent.stdin.flush()
        assert server.stalling.wait(20)
        assert agent.stdout.read(3) == "这个我"  # so the agent is reading the reply by now
        started = time.monotonic()
        agent.send_signal(signal.SIGINT)
        shown, errors = agent.communicate(timeout=20)

    assert time.monotonic() - started < 5
    assert "[aborted] " in shown
    assert errors == ""
    assert agent.returncode == 130
    assert server.line_closed.wait(10)


def test_without_a_key_it_is_offline(package: Path) -> None:
    """Nothing set, or a blank key: the scripted model answers, and no address is needed."""
    for settings in ({}, {"ANTHROPIC_API_KEY": " ", "OPENAI_API_KEY": ""}):
        code, shown, errors = converse(package, settings, "what is 12*8")
        assert (code, errors) == (0, "")
        assert "[tool result] calc: 96\n12*8 = 96\n" in shown


def test_demo_needs_nothing(package: Path) -> None:
    """Without any variable the demo prints its file; a key that is set changes nothing."""
    for settings in ({}, {"ANTHROPIC_API_KEY": KEY, "MINI_AGENT_MODEL": "another"}):
        done = subprocess.run(
            [sys.executable, "-B", "-m", "mini_agent.demo"],
            cwd=package,
            env=environment(package, **settings),
            capture_output=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout == (package / "mini_agent/expected_output.txt").read_bytes()
