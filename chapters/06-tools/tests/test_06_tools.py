"""Chapter 06, the focused tests: a tool call goes in, a tool result comes out, always."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grader.testing import assert_same, fail, plain, run
from mini_agent.abort import AbortSignal
from mini_agent.tools import (
    Tool,
    ToolError,
    ToolRegistry,
    argument_problems,
    calc_tool,
    check_arguments,
    execute_call,
    read_tool,
)
from mini_agent.types import (
    TextContent,
    ToolCall,
    ToolDefinition,
    ToolResultMessage,
    text_of,
)

READ_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["path"],
}


def test_registry_knows_its_tools_by_name() -> None:
    """Definitions keep their order; an unknown name is told with the names there are (step 6.1)."""
    registry = ToolRegistry([fake_tool("read", "# Project"), fake_tool("calc", "96")])

    assert_same(
        plain(registry.definitions),
        [plain(definition("read")), plain(definition("calc"))],
        because="the model is told of the tools in the order in which they were given",
    )
    assert_same(
        run(registry.get("calc").execute({"path": "README.md"}, None)),
        "96",
        because="`get` finds the tool of that name",
    )
    refusal = refused(lambda: registry.get("search"), "there is no tool `search`")
    assert_same(
        [name for name in ("search", "read", "calc") if name in refusal],
        ["search", "read", "calc"],
        because=f"the model can only choose better if it is told what there is; it read: {refusal}",
    )


def test_registry_refuses_a_programmers_mistake() -> None:
    """A name used twice and a schema that is none fail when the registry is made (step 6.1)."""
    twice = [fake_tool("read", "one"), fake_tool("read", "two")]
    assert_same(
        value_error_of(twice),
        "ValueError",
        because="of two tools named `read` the model could never reach one; say so at the start",
    )
    broken = Tool(ToolDefinition("read", "Read.", {"type": "text"}), fake_tool("read", "").execute)
    assert_same(
        value_error_of([broken]),
        "ValueError",
        because='`{"type": "text"}` is no JSON Schema; found out at the first call it is too late',
    )


def test_arguments_every_problem_is_listed() -> None:
    """Each problem is `path: problem`, and none hides behind another (step 6.2)."""
    problems = list(argument_problems(READ_SCHEMA, {"lines": [1, "two", 3, None]}))
    assert_same(
        sorted(problem.partition(": ")[0] for problem in problems),
        ["$", "$.lines[1]", "$.lines[3]"],
        because="`path` is missing and two lines are no integers: three problems, each at its path",
    )
    assert_same(
        ["'two'" in problem for problem in problems if problem.startswith("$.lines[1]: ")],
        [True],
        because=f"behind the path stands what is wrong with it; the problems were {problems}",
    )
    assert_same(
        list(argument_problems(READ_SCHEMA, {"path": "README.md", "lines": [1, 2]})),
        [],
        because="valid arguments have no problems",
    )


def test_arguments_a_refusal_shows_what_came() -> None:
    """The model is told the tool, every problem, and the arguments it wrote (step 6.2)."""
    wrong = {"path": 42, "lines": "all"}
    refusal = refused(
        lambda: check_arguments(definition("read"), wrong), "`path` is a number, `lines` a string"
    )
    assert_same(
        [part for part in ("read", "$.path: ", "$.lines: ") if part in refusal],
        ["read", "$.path: ", "$.lines: "],
        because=f"one answer names the tool and every problem; it was: {refusal}",
    )
    assert_same(
        '{"path":42,"lines":"all"}' in refusal.replace(" ", ""),
        True,
        because=f"the received arguments stand there as JSON; the answer was: {refusal}",
    )
    check_arguments(definition("read"), {"path": "README.md"})  # says nothing


def test_execute_answers_with_the_calls_own_id() -> None:
    """The tool gets the arguments; its text becomes the result of this very call (step 6.3)."""
    seen: list[dict[str, Any]] = []
    handed: list[AbortSignal | None] = []

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        seen.append(arguments)
        handed.append(signal)
        return "# Project"

    signal = AbortSignal()
    result = run(execute_call(read_call(), registry_of(execute), signal, clock=lambda: 7))

    assert_same(
        seen, [{"path": "README.md"}], because="the tool runs once, with the call's arguments"
    )
    assert_same(handed, [signal], because="a tool that wants to watch the signal is given it")
    assert_same(
        result,
        ToolResultMessage("call-1", "read", (TextContent("# Project"),), False, 7),
        because="a result is paired with its call by the id that came from the provider",
    )


def test_execute_leaves_the_call_as_it_is() -> None:
    """The call stands in the transcript: a tool works on its own copy (step 6.3)."""

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        arguments["lines"].sort()
        arguments["opened"] = True
        return str(arguments["lines"])

    call = ToolCall("call-1", "read", {"path": "README.md", "lines": [3, 1, 2]})
    result = run(execute_call(call, registry_of(execute)))

    assert_same(text_of(result), "[1, 2, 3]", because="the tool may do with its copy what it likes")
    assert_same(
        list(call.arguments or {}),
        ["path", "lines"],
        because="a key that the tool added for itself appeared in the transcript",
    )
    assert_same(
        call.arguments,
        {"path": "README.md", "lines": [3, 1, 2]},
        because="the tool sorted a list inside its arguments; the call's own list must not move",
    )


def test_execute_does_not_run_what_cannot_be_run() -> None:
    """Unknown tool, wrong arguments, arguments cut off: an error result, and no run (step 6.3)."""
    ran: list[dict[str, Any]] = []

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        ran.append(arguments)
        return "it ran"

    registry = registry_of(execute)
    hopeless = {
        "there is no tool `search`": ToolCall("call-1", "search", {"path": "README.md"}),
        "`path` must be a string": ToolCall("call-2", "read", {"path": 42}),
        "the arguments were cut off": ToolCall("call-3", "read", None, '{"path":"READ'),
    }
    for reason, call in hopeless.items():
        result = run(execute_call(call, registry))
        assert_same(
            (result.tool_call_id, result.tool_name, result.is_error),
            (call.id, call.name, True),
            because=f"{reason}: that is an error result of {call.id}, and no exception",
        )
        assert_same(ran, [], because=f"{reason}, so the tool must not run")
    assert_same(
        "$.path: " in text_of(run(execute_call(hopeless["`path` must be a string"], registry))),
        True,
        because="the error result tells the model which argument was wrong",
    )


def test_execute_turns_an_exception_into_an_error_result() -> None:
    """Whatever a tool raises, the model reads it, and the agent lives on (step 6.3)."""

    async def read_fails(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        raise ToolError("README.md is a directory")

    async def disk_fails(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        raise OSError("disk on fire")

    async def says_nothing(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        raise LookupError

    expected = {
        read_fails: "README.md is a directory",
        disk_fails: "disk on fire",
        says_nothing: "LookupError",
    }
    for execute, message in expected.items():
        result = run(execute_call(read_call(), registry_of(execute), clock=lambda: 7))
        assert_same(
            result,
            ToolResultMessage("call-1", "read", (TextContent(message),), True, 7),
            because="the text of the exception is the error result; without a text, its class is",
        )


def test_execute_an_abort_ends_the_wait() -> None:
    """An aborted tool answers "Operation aborted", at once, started or not (step 6.3)."""
    log: list[str] = []

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        log.append("started")
        try:
            await a_long_time()
            return "too late"
        finally:
            log.append("released")

    async def abort_while_it_runs() -> ToolResultMessage:
        signal = AbortSignal()
        task = asyncio.create_task(execute_call(read_call(), registry_of(execute), signal))
        await a_moment()
        signal.abort()
        return await task

    async def abort_before_it_runs() -> ToolResultMessage:
        signal = AbortSignal()
        signal.abort()
        return await execute_call(read_call(), registry_of(execute), signal)

    result = run(abort_while_it_runs())
    assert_same(
        (text_of(result), result.is_error, result.tool_call_id),
        ("Operation aborted", True, "call-1"),
        because="the signal is raced against the tool: nobody waits for it to notice",
    )
    assert_same(
        log, ["started", "released"], because="when the result is there, the tool has cleaned up"
    )
    result = run(abort_before_it_runs())
    assert_same(
        (text_of(result), result.is_error, log),
        ("Operation aborted", True, ["started", "released"]),
        because="with an aborted signal the tool is not even started",
    )


def test_execute_lets_a_cancellation_through() -> None:
    """`CancelledError` belongs to the event loop: it is no failure of the tool (step 6.3)."""

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        await a_long_time()
        return "too late"

    async def cancel_while_it_runs() -> str:
        task = asyncio.create_task(
            execute_call(read_call(), registry_of(execute), AbortSignal())
        )
        await a_moment()
        task.cancel()
        try:
            result = await task
        except asyncio.CancelledError:
            return "CancelledError"
        return f"a result: {text_of(result)}"

    assert_same(
        run(cancel_while_it_runs()),
        "CancelledError",
        because="whoever cancels a task waits for it to be cancelled, not for an answer",
    )


def test_calc_computes_as_python_does() -> None:
    """Precedence, signs, division and powers are Python's; 4.0 is written 4 (step 6.4)."""
    expected = {
        "12*8": "96",
        "2 + 3 * 4": "14",
        "(2 + 3) * 4": "20",
        "-2 ** 2": "-4",
        "2 ** 3 ** 2": "512",
        "2 ** -1": "0.5",
        "8 / 2": "4",
        "7 / 2": "3.5",
        "-7 // 2": "-4",
        "-7 % 3": "2",
        "+1.5e3": "1500",
        "2 ** 100": "1267650600228229401496703205376",
    }
    for expression, value in expected.items():
        assert_same(
            run(calc_tool().execute({"expression": expression}, None)),
            value,
            because=f"{expression} is {value}",
        )


def test_calc_refuses_everything_else() -> None:
    """What is no arithmetic, or too large to be an answer, is a ToolError (step 6.4)."""
    no_arithmetic = [
        "__import__('os').getcwd()",
        "()",
        "().__class__",
        "1 (2)",
        "abs(1)",
        "'a' * 3",
        "1 < 2",
        "[1, 2]",
        "(1, 2)",
        "x",
        "True",
        "1j",
        "12 *",
        "",
    ]
    for expression in no_arithmetic:
        calc_refused(expression, "only numbers, operators and parentheses are arithmetic")
    calc_refused("1 / 0", "a division by zero has no value")
    calc_refused("(-8) ** 0.5", "the root of a negative number is not a real number")
    too_large = ["2 ** 5000", "9" * 400, "10 ** 200 * 10 ** 200", "1e300 * 1e300", "10.0 ** 400"]
    for expression in too_large:
        calc_refused(expression, "a number of more than 300 digits is no answer")


def test_read_stays_inside_its_root(tmp_path: Path) -> None:
    """Relative paths below the root are read; every way out is refused (step 6.5)."""
    root = tmp_path / "project"
    (root / "docs").mkdir(parents=True)
    (root / "README.md").write_bytes("# Project 正在".encode())
    (root / "docs" / "deep.txt").write_bytes(b"deep")
    secrets = tmp_path / "project-secrets"
    secrets.mkdir()
    (secrets / "key").write_bytes(b"test-key")
    inside = {"README.md": "# Project 正在", "docs/deep.txt": "deep"}
    outside = {
        "../project-secrets/key": "`..` leads out",
        "docs/../../project-secrets/key": "`..` leads out, from further down as well",
        str(secrets / "key"): "an absolute path is no path below the root",
    }
    if link_to(root / "docs", root / "inner-link") and link_to(secrets, root / "way-out"):
        inside["inner-link/deep.txt"] = "deep"
        outside["way-out/key"] = (
            "the link ends in `project-secrets`, which only begins like the root"
        )
    for path, content in inside.items():
        assert_same(
            run(read_tool(root).execute({"path": path}, None)),
            content,
            because=f"{path} is a file below the root",
        )
    for path, reason in outside.items():
        read_refused(read_tool(root), path, reason)


def test_read_says_why_it_cannot(tmp_path: Path) -> None:
    """A directory, no UTF-8, too many bytes, nothing there: one sentence each (step 6.5)."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "full.txt").write_bytes(b"x" * 10)
    (tmp_path / "long.txt").write_bytes(b"x" * 11)
    tool = read_tool(tmp_path, max_bytes=10)

    assert_same(
        run(tool.execute({"path": "full.txt"}, None)),
        "x" * 10,
        because="10 bytes are within a limit of 10",
    )
    for path, reason in {
        "long.txt": "11 bytes are over the limit of 10, and half a file would pass for a whole one",
        "photo.png": "its bytes are not UTF-8, and replaced characters would pass for its text",
        "docs": "a directory has no text",
        "missing.txt": "there is no such file",
    }.items():
        told = read_refused(tool, path, reason)
        assert_same(path in told, True, because=f"the sentence names the path; it was: {told}")
        assert_same(
            str(tmp_path) in told,
            False,
            because=f"where the project lies is none of the model's business; it read: {told}",
        )


def definition(name: str) -> ToolDefinition:
    return ToolDefinition(name, f"What {name} does.", READ_SCHEMA)


def fake_tool(name: str, answer: str) -> Tool:
    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        return answer

    return Tool(definition(name), execute)


def registry_of(execute: Any) -> ToolRegistry:
    """A registry whose one tool, `read`, is this function."""
    return ToolRegistry([Tool(definition("read"), execute)])


def read_call() -> ToolCall:
    """The running example's call."""
    return ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}')


async def a_moment() -> None:
    """Let everything that is ready run, and begin to wait."""
    for _ in range(5):
        await asyncio.sleep(0)


async def a_long_time() -> None:
    """Longer than any test waits, and yet it ends: a test that fails should not hang."""
    for _ in range(500):
        await asyncio.sleep(0)


def refused(action: Callable[[], object], reason: str) -> str:
    """The text of the ToolError that `action` must raise."""
    __tracebackhide__ = True
    try:
        got = action()
    except ToolError as error:
        return str(error)
    except NotImplementedError:
        raise
    except Exception as error:
        fail(f"{reason}: expected a ToolError, and got {type(error).__name__}: {error}")
    fail(f"{reason}: expected a ToolError, and got {got!r:.80}")
    return ""


def calc_refused(expression: str, reason: str) -> None:
    __tracebackhide__ = True
    shown = expression if len(expression) <= 40 else f"{expression[:20]}…"
    tool = calc_tool()
    refused(lambda: run(tool.execute({"expression": expression}, None)), f"`{shown}`: {reason}")


def read_refused(tool: Tool, path: str, reason: str) -> str:
    __tracebackhide__ = True
    shown = path if not path.startswith("/") else f"/…/{Path(path).name}"
    return refused(lambda: run(tool.execute({"path": path}, None)), f"`{shown}`: {reason}")


def link_to(directory: Path, link: Path) -> bool:
    """Make a link, where that is allowed: on Windows it may need a right of its own."""
    try:
        link.symlink_to(directory, target_is_directory=True)
    except OSError:
        return False
    return True


def value_error_of(tools: list[Tool]) -> str:
    """What making a registry of these tools raises."""
    try:
        ToolRegistry(tools)
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__
    return "nothing was raised"
