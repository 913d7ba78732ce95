"""Chapter 06, stretch: every limit exactly where the chapter's text puts it, on both sides."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from grader.testing import assert_same, fail, run
from mini_agent.abort import AbortSignal
from mini_agent.tools import Tool, ToolError, ToolRegistry, calc_tool, execute_call, read_tool
from mini_agent.tools.calc import evaluate
from mini_agent.tools.validate import argument_problems
from mini_agent.types import ToolCall, ToolDefinition


def refused(expression: str) -> bool:
    """Whether `evaluate` raises ToolError for it."""
    try:
        evaluate(expression)
    except ToolError:
        return True
    return False


def check(allowed: str, too_much: str, limit: str) -> None:
    """`allowed` has a value, `too_much`, a little beyond it, has none."""
    if refused(allowed):
        fail(f"{limit}: {allowed[:40]}… is within the limit and was refused")
    if not refused(too_much):
        fail(f"{limit}: {too_much[:40]}… is beyond the limit and was answered")


def test_limit_of_the_length() -> None:
    """500 characters are read, 501 are not."""
    check("0." + "1" * 498, "0." + "1" * 499, "MAX_LENGTH is 500 characters")


@pytest.mark.parametrize(
    "form",
    [
        lambda n: "-" * n + "1",
        lambda n: "+" * n + "1",
        lambda n: "+".join(["1"] * (n + 1)),
        lambda n: "1-(" * n + "1" + ")" * n,
    ],
    ids=["minus", "plus", "left", "right"],
)
def test_limit_of_the_depth(form: Any) -> None:
    """99 operations inside one another are fine, 101 are too many, however they are nested."""
    check(form(99), form(101), "MAX_DEPTH is 100 operations")


def test_limit_of_the_exponent() -> None:
    """1000 is an exponent, 1001 is none; a negative one counts by its size."""
    check("1**1000", "1**1001", "MAX_EXPONENT is 1000")
    check("1**-1000", "1**-1001", "MAX_EXPONENT is 1000")


def test_limit_of_the_digits() -> None:
    """300 digits are a value, 301 are none: typed, added, or from a power."""
    check("9" * 300, "1" + "0" * 300, "MAX_DIGITS is 300")
    check("9" * 300 + "+0", "9" * 300 + "+1", "MAX_DIGITS is 300")
    check("10**299", "10**300", "MAX_DIGITS is 300")
    check("2**996", "2**997", "MAX_DIGITS is 300, and 2**996 has 300 digits")
    check("-" + "9" * 300, "-1" + "0" * 300, "MAX_DIGITS is 300")


def test_limit_of_a_file(tmp_path: Path) -> None:
    """`read` gives a file of 100,000 bytes, and refuses one of 100,001."""
    (tmp_path / "fits.txt").write_bytes(b"x" * 100_000)
    (tmp_path / "large.txt").write_bytes(b"x" * 100_001)
    tools = ToolRegistry([read_tool(tmp_path)])

    def read(path: str) -> bool:
        call = ToolCall("call-1", "read", {"path": path})
        return run(execute_call(call, tools)).is_error

    assert_same(read("fits.txt"), False, because="MAX_BYTES is 100,000, and the file has as many")
    assert_same(read("large.txt"), True, because="one byte more is too many")


def test_limit_of_what_is_shown() -> None:
    """Arguments of 500 characters are sent back whole; longer ones lose their middle."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        return "never"

    tools = ToolRegistry([Tool(ToolDefinition("count", "Count.", schema), execute)])

    def told(size: int) -> tuple[str, str]:
        filler = "abcdefghij" * 60
        arguments = {"x": filler[: size - len('{"x": ""}')]}
        answer = run(execute_call(ToolCall("call-1", "count", arguments), tools))
        return filler[: size - len('{"x": ""}')], answer.content[0].text

    value, whole = told(500)
    if value not in whole:
        fail("arguments of 500 characters were not sent back whole")
    value, cut = told(501)
    if value in cut:
        fail("arguments of 501 characters were sent back whole")
    if value[:200] not in cut or value[-200:] not in cut:
        fail("of arguments that are too long, the beginning and the end are shown")


@pytest.mark.parametrize("name", ["calc", "read"])
def test_definition_says_how_a_tool_is_called(name: str, tmp_path: Path) -> None:
    """The name, a description, and a schema that takes the one argument and nothing else."""
    tool = calc_tool() if name == "calc" else read_tool(tmp_path)
    argument = "expression" if name == "calc" else "path"
    definition = tool.definition

    assert_same(definition.name, name, because="the model calls the tool by this name")
    if not (isinstance(definition.description, str) and definition.description.strip()):
        fail("the model chooses a tool by its description: there is none")
    problems = [
        bool(argument_problems(definition.parameters, arguments))
        for arguments in ({argument: "1"}, {}, {argument: 1}, {argument: "1", "more": "2"})
    ]
    assert_same(
        problems,
        [False, True, True, True],
        because="one text is right; none, a number, and one argument more are wrong",
    )


def test_execute_stamps_a_tool_that_cancels_itself() -> None:
    """The answer to a tool that cancelled something of its own has the time of the clock."""

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        raise asyncio.CancelledError

    definition = ToolDefinition("odd", "Odd.", {"type": "object"})
    tools = ToolRegistry([Tool(definition, execute)])

    answer = run(execute_call(ToolCall("call-1", "odd", {}), tools, clock=lambda: 77))

    assert_same(
        (answer.is_error, answer.timestamp), (True, 77), because="every answer is stamped when made"
    )
