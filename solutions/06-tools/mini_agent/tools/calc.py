"""The tool `calc`: arithmetic with limits. It reads a syntax tree, and evaluates nothing else.

`eval()` would run whatever the model wrote. And arithmetic alone is enough to stop a program:
`9**9**9` has 369 million digits. So every operation has a bound before it is carried out.
"""

import ast
import math
from typing import Any, TypeAlias

from mini_agent.abort import AbortSignal
from mini_agent.tools.tool import Tool, ToolError
from mini_agent.types import ToolDefinition

Number: TypeAlias = int | float

MAX_LENGTH = 500  # characters of an expression
MAX_DEPTH = 100  # operations inside one another; `1+1+1` is two
MAX_EXPONENT = 1000
MAX_DIGITS = 300  # of an intermediate or final result

_LIMIT = 10**MAX_DIGITS
_BITS_OF_LIMIT = _LIMIT.bit_length()
_CHARACTERS = frozenset("0123456789.eE+-*/%() ")
_SPELLINGS = str.maketrans("×÷−（）\t\n", "*/-()  ")


class CalcError(ToolError):
    """The expression is not arithmetic, or its value is out of bounds."""


def evaluate(expression: str) -> Number:
    """The value of `expression`: numbers, `+ - * / // % **` and parentheses, with Python's meaning.

    Raises CalcError for everything else, and for what is too long, too deep or too large.
    """
    if len(expression) > MAX_LENGTH:
        raise CalcError(f"the expression is longer than {MAX_LENGTH} characters")
    source = expression.translate(_SPELLINGS).strip()
    for character in source:
        if character == "^":
            raise CalcError("`^` is not known here; write a power as `2**10`")
        if character not in _CHARACTERS:
            raise CalcError(f"`{character}` has no place in arithmetic")
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise CalcError(f"this is not a complete expression: {source or 'nothing'}") from None
    return _value(tree.body, MAX_DEPTH)


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


def _value(node: ast.expr, depth: int) -> Number:
    if depth == 0:
        raise CalcError(f"more than {MAX_DEPTH} operations stand inside one another")
    match node:
        case ast.Constant(value=int() | float() as value):
            return _bounded(value)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, depth - 1)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, depth - 1)
        case ast.BinOp(left=left, op=op, right=right):
            return _bounded(_apply(op, _value(left, depth - 1), _value(right, depth - 1)))
        case _:
            raise CalcError(f"`{ast.unparse(node)}` is not arithmetic")


def _apply(op: ast.operator, left: Number, right: Number) -> Number:
    try:
        match op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
            case ast.FloorDiv():
                return left // right
            case ast.Mod():
                return left % right
            case ast.Pow():
                return _power(left, right)
    except ZeroDivisionError:
        raise CalcError("division by zero") from None
    except OverflowError:
        raise CalcError(f"the result has more than {MAX_DIGITS} digits") from None
    raise CalcError("this operation is not known here")


def _power(base: Number, exponent: Number) -> Number:
    """`base ** exponent`, refused before it is carried out if it would be too large."""
    if abs(exponent) > MAX_EXPONENT:
        raise CalcError(f"the exponent is larger than {MAX_EXPONENT}")
    if isinstance(base, int):
        # 2**(bits - 1) <= abs(base): the estimate is never too high, so it refuses nothing small.
        bits = (abs(base).bit_length() - 1) * exponent
        if bits > _BITS_OF_LIMIT:
            raise CalcError(f"the result has more than {MAX_DIGITS} digits")
    result = base**exponent
    if isinstance(result, int | float):
        return result
    raise CalcError("the result is not a real number")


def _bounded(value: Number) -> Number:
    if abs(value) >= _LIMIT or not math.isfinite(value):
        raise CalcError(f"the result has more than {MAX_DIGITS} digits")
    return value
