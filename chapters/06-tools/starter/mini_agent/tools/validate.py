"""Check a tool call's arguments against the tool's JSON Schema, before the tool sees them."""

from typing import Any

from mini_agent.types import ToolDefinition

MAX_SHOWN = 500  # characters of one problem, or of the received arguments


def argument_problems(parameters: dict[str, Any], arguments: dict[str, Any]) -> tuple[str, ...]:
    """Everything that is wrong, each as `path: problem`; empty if the arguments are valid.

    The path starts at the arguments themselves, `$`: a wrong `path` is at `$.path`, a missing
    one is a problem of `$`. A `$ref` may point inside the schema and nowhere else.
    """
    raise NotImplementedError("step 6.2")


def check_arguments(definition: ToolDefinition, arguments: dict[str, Any]) -> None:
    """Raise ToolError with every problem and the received arguments, if there is any problem.

    A model corrects itself in one step only if it is told everything at once, and what it wrote.
    """
    raise NotImplementedError("step 6.2")


def _shortened(text: str) -> str:
    if len(text) <= MAX_SHOWN:
        return text
    half = MAX_SHOWN // 2
    return f"{text[:half]} … {text[-half:]}"
