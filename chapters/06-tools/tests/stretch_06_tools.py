"""Chapter 06, stretch: odd schemas, odd tools, and every trick a path can play."""

import asyncio
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.testing import assert_same, run
from mini_agent.abort import AbortSignal
from mini_agent.tools import (
    Tool,
    ToolError,
    ToolRegistry,
    argument_problems,
    check_arguments,
    execute_call,
    read_tool,
)
from mini_agent.types import ToolCall, ToolDefinition, ToolResultMessage, text_of

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)


# Schemas


def test_schema_a_ref_inside_is_followed() -> None:
    """`$ref` to the schema's own `$defs` works, and the problem's path is the argument's."""
    schema = {
        "type": "object",
        "properties": {"files": {"type": "array", "items": {"$ref": "#/$defs/file"}}},
        "$defs": {"file": {"type": "object", "required": ["path"]}},
    }
    assert_same(list(argument_problems(schema, {"files": [{"path": "a"}]})), [])
    problems = argument_problems(schema, {"files": [{"path": "a"}, {}]})
    assert_same([problem.partition(": ")[0] for problem in problems], ["$.files[1]"])


def test_schema_a_ref_outside_is_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote `$ref` opens no connection: the call gets an error result."""

    tried: list[str] = []

    def no_network(*_: object, **__: object) -> None:
        tried.append("a connection")
        raise OSError("no network here")

    monkeypatch.setattr(socket, "socket", no_network)
    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    schema = {"properties": {"path": {"$ref": "http://example.invalid/path.json"}}}
    tools = registry_of(answering("x"), schema)
    # The event loop itself needs a socket, so the call is checked without one.
    with pytest.raises(Exception, match=r"example\.invalid"):
        argument_problems(schema, {"path": "README.md"})
    assert_same(tried, [], because="a schema was to be fetched over the network")
    monkeypatch.undo()
    result = run(execute_call(ToolCall("call-1", "read", {"path": "README.md"}), tools))
    assert_same((result.is_error, result.tool_call_id), (True, "call-1"))


def test_schema_that_refers_to_itself() -> None:
    """A recursive schema checks nested arguments, and a hopeless one is an error result."""
    tree = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
        "additionalProperties": False,
    }
    good: dict[str, Any] = {"children": [{"children": [{}]}, {}]}
    assert_same(list(argument_problems(tree, good)), [])
    bad = {"children": [{"children": [{"name": "x"}]}]}
    assert_same(
        [problem.partition(": ")[0] for problem in argument_problems(tree, bad)],
        ["$.children[0].children[0]"],
    )
    endless = {"$ref": "#"}
    result = run(execute_call(ToolCall("call-1", "read", {}), registry_of(answering("x"), endless)))
    assert_same(result.is_error, True, because="a schema that never ends is a failure of the call")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"properties": []},
        {"required": "path"},
        {"type": "object", "properties": {"path": {"minLength": "one"}}},
        {"pattern": "("},
    ],
)
def test_schema_that_is_none_never_gets_in(schema: dict[str, Any]) -> None:
    """A registry names the tool whose schema is wrong, or no call of it raises."""
    try:
        tools = registry_of(answering("x"), schema)
    except ValueError as error:
        told = str(error)
    else:
        told = text_of(run(execute_call(ToolCall("call-1", "read", {"path": "x"}), tools)))
    assert told


@pytest.mark.parametrize("draft", ["04", "06", "07"])
def test_schema_of_an_older_draft_is_read_as_that_draft(draft: str) -> None:
    """`$schema` decides: in draft 04 a boolean `exclusiveMinimum` is right, later it is not."""
    schema: dict[str, Any] = {
        "$schema": f"http://json-schema.org/draft-{draft}/schema#",
        "properties": {"n": {"minimum": 1}},
    }
    if draft == "04":
        schema["properties"]["n"]["exclusiveMinimum"] = True
    assert_same(len(argument_problems(schema, {"n": 0})), 1)
    assert_same(len(argument_problems(schema, {"n": 2})), 0)


def test_schema_of_a_draft_of_its_own_is_read_as_the_newest() -> None:
    """An unknown `$schema` is no reason to warn in the middle of a conversation."""
    schema = {"$schema": "https://example.invalid/mine", "required": ["path"]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tools = registry_of(answering("x"), schema)
        assert_same(len(argument_problems(schema, {})), 1)
        result = run(execute_call(ToolCall("call-1", "read", {"path": "a"}), tools))
    assert_same(text_of(result), "x")


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.text(max_size=6), json_values, max_size=4))
def test_arguments_of_any_shape_are_judged(arguments: dict[str, Any]) -> None:
    """Any JSON object is valid or refused with a reason, and comes out as it went in."""
    before = repr(arguments)
    definition = ToolDefinition(
        "read",
        "",
        {"required": ["path"], "properties": {"path": {"type": "string", "maxLength": 4}}},
    )
    refusal, _ = attempt(lambda: check_arguments(definition, arguments))
    if refusal is None:
        assert isinstance(arguments["path"], str)
    else:
        assert "$" in refusal
    assert_same(repr(arguments), before)


def test_arguments_are_shown_in_their_own_language() -> None:
    """The model wrote 读取, and reads 读取: an escaped text is six times as long."""
    definition = ToolDefinition("read", "", {"properties": {"path": {"type": "integer"}}})
    with pytest.raises(ToolError, match='"读取"'):  # the received arguments are JSON
        check_arguments(definition, {"path": "读取"})


def test_arguments_of_a_megabyte_are_not_sent_back_whole() -> None:
    """The model wrote it; a refusal that repeats all of it would fill its window."""
    definition = ToolDefinition("read", "", {"properties": {"path": {"type": "integer"}}})
    with pytest.raises(ToolError) as refusal:
        check_arguments(definition, {"path": "x" * 1_000_000})
    assert len(str(refusal.value)) < 3_000


# Execution


@settings(deadline=None, max_examples=100)
@given(
    name=st.sampled_from(["read", "", "nope", "read "]),
    arguments=st.none() | st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    behaviour=st.sampled_from(["answer", "raise", "none", "abort", "not awaitable", "cancelled"]),
    aborted=st.booleans(),
)
def test_execute_always_answers(
    name: str, arguments: dict[str, Any] | None, behaviour: str, aborted: bool
) -> None:
    """Whatever the call, the tool and the signal: one result, with the call's id and name."""
    signal = AbortSignal()

    async def execute(arguments: dict[str, Any], given: AbortSignal | None) -> Any:
        match behaviour:
            case "raise":
                raise RuntimeError("no")
            case "none":
                return None
            case "abort":
                signal.abort()
                await asyncio.sleep(0)
            case "cancelled":
                await cancelled_inside()
        return "fine"

    def not_awaitable(arguments: dict[str, Any], given: AbortSignal | None) -> Any:
        return "fine"

    async def scenario() -> ToolResultMessage:
        if aborted:
            signal.abort()
        tools = registry_of(not_awaitable if behaviour == "not awaitable" else execute, {})
        return await execute_call(ToolCall("call-9", name, arguments), tools, signal)

    result = run(scenario())
    assert_same((result.tool_call_id, result.tool_name), ("call-9", name))
    well = name == "read" and arguments is not None and behaviour == "answer" and not aborted
    assert_same(result.is_error, not well)
    assert text_of(result), "a result is never empty-handed about a failure"


def test_execute_a_tool_that_cancels_its_own_task_is_a_failed_tool() -> None:
    """A CancelledError that nobody asked for is the tool's own: an error result."""

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        await cancelled_inside()
        return "never"

    result = run(execute_call(ToolCall("call-1", "read", {}), registry_of(execute, {})))
    assert_same((text_of(result), result.is_error), ("Operation aborted", True))


def test_execute_a_stumble_while_stopping_is_still_an_abort() -> None:
    """A tool that fails in its cleanup after an abort was aborted: that is what the user did."""
    signal = AbortSignal()

    async def execute(arguments: dict[str, Any], given: AbortSignal | None) -> str:
        try:
            signal.abort()
            await asyncio.sleep(10)
        finally:
            raise RuntimeError("stopped halfway")

    tools = registry_of(execute, {})
    result = run(execute_call(ToolCall("call-1", "read", {}), tools, signal))
    assert_same((text_of(result), result.is_error), ("Operation aborted", True))


def test_execute_many_aborted_at_once() -> None:
    """One signal ends a hundred running tools, and each answers for itself."""

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        await asyncio.Event().wait()
        return "never"

    async def scenario() -> list[ToolResultMessage]:
        signal = AbortSignal()
        tools = registry_of(execute, {})
        tasks = [
            asyncio.create_task(execute_call(ToolCall(f"call-{n}", "read", {}), tools, signal))
            for n in range(100)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        signal.abort("enough")
        return [await task for task in tasks]

    results = run(scenario())
    assert_same([result.tool_call_id for result in results], [f"call-{n}" for n in range(100)])
    assert_same({text_of(result) for result in results} == {"Operation aborted"}, True)


# Paths


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_text("inside", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("test-key", encoding="utf-8")
    return root


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../secret.txt",
        "./../secret.txt",
        "a.txt/../../secret.txt",
        "nowhere/../../secret.txt",
        "//etc/passwd",
        "/etc/passwd",
        "/proc/self/environ",
        "~/secret.txt",
        "a.txt/",
        "a.txt\0",
        "\0",
        "",
        ".",
        "x" * 5000,
        "/".join(["d"] * 3000),
        "\ud800.txt",
        "..\\secret.txt",
        "C:\\secret.txt",
        "file:///etc/passwd",
        "%2e%2e/secret.txt",
    ],
)
def test_path_tricks_end_in_a_refusal(root: Path, path: str) -> None:
    """Each is a ToolError in one sentence; `a.txt/` alone may be read as `a.txt`."""
    refusal, content = attempt(lambda: run(read_tool(root).execute({"path": path}, None)))
    if refusal is None:
        assert_same((path, content), ("a.txt/", "inside"))
    else:
        assert str(root.parent) not in refusal


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right of their own there")
def test_path_links_of_every_kind(root: Path) -> None:
    """A link is where it ends: out, in a loop, through a directory, to nothing, and back in."""
    (root / "out").symlink_to("../secret.txt")
    (root / "loop").symlink_to("loop")
    (root / "up").symlink_to("..")
    (root / "chain").symlink_to("out")
    (root / "broken").symlink_to("nothing")
    (root / "back").symlink_to(root / "a.txt")
    (root / "round").symlink_to(f"../{root.name}/a.txt")
    for path in ("out", "loop", "up/secret.txt", "chain", "broken", "up"):
        with pytest.raises(ToolError):
            run(read_tool(root).execute({"path": path}, None))
    for path in ("back", "round"):
        assert_same(run(read_tool(root).execute({"path": path}, None)), "inside")


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right of their own there")
def test_path_a_root_behind_a_link_is_a_root(root: Path, tmp_path: Path) -> None:
    """The root itself may be a link: a temporary directory often is."""
    (tmp_path / "link").symlink_to(root)
    assert_same(run(read_tool(tmp_path / "link").execute({"path": "a.txt"}, None)), "inside")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_path_to_a_pipe_does_not_wait_for_a_writer(root: Path) -> None:
    """To open a named pipe waits until somebody writes: that is said and not tried."""
    os.mkfifo(root / "pipe")

    async def scenario() -> str:
        try:
            async with asyncio.timeout(5):
                return await read_tool(root).execute({"path": "pipe"}, None)
        except ToolError as error:
            return str(error)

    assert "pipe" in run(scenario())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no /proc")
def test_path_to_a_file_that_lies_about_its_size() -> None:
    """A file of /proc says it has 0 bytes: what counts is what comes out of it."""
    assert run(read_tool(Path("/proc/self")).execute({"path": "status"}, None))
    with pytest.raises(ToolError):
        run(read_tool(Path("/proc/self"), max_bytes=10).execute({"path": "status"}, None))


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right of their own there")
@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(["..", ".", "a.txt", "sub", "up", "~", " ", "-"]), max_size=6))
def test_path_of_any_parts_never_gives_the_secret(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    """No path made of these parts reads the file beside the root."""
    base = tmp_path_factory.mktemp("paths")
    root = base / "project"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("inside", encoding="utf-8")
    (root / "up").symlink_to("..")
    (base / "a.txt").write_text("secret", encoding="utf-8")
    try:
        content = run(read_tool(root).execute({"path": "/".join(parts)}, None))
    except ToolError:
        return
    assert_same(content, "inside")


def test_read_limits_and_bytes(root: Path) -> None:
    """The limit counts bytes and not characters; line ends and a BOM come as they are."""
    (root / "zh.txt").write_bytes("正在".encode())
    assert_same(run(read_tool(root, max_bytes=6).execute({"path": "zh.txt"}, None)), "正在")
    with pytest.raises(ToolError):
        run(read_tool(root, max_bytes=5).execute({"path": "zh.txt"}, None))
    (root / "crlf.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\rc")
    assert_same(run(read_tool(root).execute({"path": "crlf.txt"}, None)), "\ufeffa\r\nb\rc")
    (root / "empty.txt").write_bytes(b"")
    assert_same(run(read_tool(root).execute({"path": "empty.txt"}, None)), "")
    (root / "cut.txt").write_bytes("正".encode()[:2])
    with pytest.raises(ToolError):
        run(read_tool(root).execute({"path": "cut.txt"}, None))


def test_read_does_not_hold_up_the_loop(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is read outside the event loop's thread."""
    threads: list[bool] = []
    original = Path.open

    def noticed(self: Path, *args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", noticed)
    assert_same(run(read_tool(root).execute({"path": "a.txt"}, None)), "inside")
    assert True not in threads, "the file was opened in the event loop's own thread"


def attempt(action: Callable[[], Any]) -> tuple[str | None, Any]:
    """The text of the ToolError that `action` raised, or None and what it returned."""
    try:
        return None, action()
    except ToolError as error:
        return str(error), None


async def cancelled_inside() -> None:
    task = asyncio.get_running_loop().create_task(asyncio.sleep(10))
    task.cancel()
    await task


def answering(answer: str) -> Any:
    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        return answer

    return execute


def registry_of(execute: Any, schema: dict[str, Any]) -> ToolRegistry:
    return ToolRegistry([Tool(ToolDefinition("read", "Read.", schema), execute)])
