"""The tool `calc`: arithmetic with limits. It reads a syntax tree, and evaluates nothing else.

`eval()` would run whatever the model wrote. And arithmetic alone is enough to stop a program:
`9**9**9` has 369 million digits. So every operation has a bound before it is carried out.
"""

from typing import Any, TypeAlias

from mini_agent.abort import AbortSignal
from mini_agent.tools.tool import Tool, ToolError
from mini_agent.types import ToolDefinition

Number: TypeAlias = int | float

MAX_LENGTH = 500  # characters of an expression
MAX_DEPTH = 100  # operations inside one another; `1+1+1` is two
MAX_EXPONENT = 1000
MAX_DIGITS = 300  # of an intermediate or final result


class CalcError(ToolError):
    """The expression is not arithmetic, or its value is out of bounds."""


def evaluate(expression: str) -> Number:
    """The value of `expression`: numbers, `+ - * / // % **` and parentheses, with Python's meaning.

    Raises CalcError for everything else, and for what is too long, too deep or too large.
    """
    raise NotImplementedError("step 6.4")


def format_number(value: Number) -> str:
    """The value as a person writes it: 4 and not 4.0, 0.3 and not 0.30000000000000004."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def calc_tool() -> Tool:
    """The tool `calc`, which takes one `expression`."""
    return Tool(
        ToolDefinition(
            name="calc",
            description="Evaluate an arithmetic expression: + - * / // % ** and parentheses.",
            parameters={
                "type": "object",
                "properties": {
                    "expression": {"type": "string", "description": "such as 12*8 or (1+2)**3"}
                },
                "required": ["expression"],
                "additionalProperties": False,
            },
        ),
        _execute,
    )


async def _execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
    return format_number(evaluate(arguments["expression"]))
