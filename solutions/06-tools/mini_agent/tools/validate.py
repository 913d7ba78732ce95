"""Check a tool call's arguments against the tool's JSON Schema, before the tool sees them."""

import json
from typing import Any

from jsonschema.validators import Draft202012Validator, validator_for
from referencing.jsonschema import EMPTY_REGISTRY

from mini_agent.tools.tool import ToolError
from mini_agent.types import ToolDefinition

MAX_SHOWN = 500  # characters of one problem, or of the received arguments


def argument_problems(parameters: dict[str, Any], arguments: dict[str, Any]) -> tuple[str, ...]:
    """Everything that is wrong, each as `path: problem`; empty if the arguments are valid.

    The path starts at the arguments themselves, `$`: a wrong `path` is at `$.path`, a missing
    one is a problem of `$`. A `$ref` may point inside the schema and nowhere else.
    """
    # Without the empty registry, jsonschema would fetch a remote `$ref` over the network.
    schema_class = validator_for(parameters, default=Draft202012Validator)
    validator = schema_class(parameters, registry=EMPTY_REGISTRY)
    errors = sorted(validator.iter_errors(arguments), key=lambda error: error.json_path)
    return tuple(f"{error.json_path}: {_shortened(error.message)}" for error in errors)


def check_arguments(definition: ToolDefinition, arguments: dict[str, Any]) -> None:
    """Raise ToolError with every problem and the received arguments, if there is any problem.

    A model corrects itself in one step only if it is told everything at once, and what it wrote.
    """
    problems = argument_problems(definition.parameters, arguments)
    if problems:
        received = _shortened(json.dumps(arguments, ensure_ascii=False))
        lines = (f"Invalid arguments for tool `{definition.name}`:", *problems)
        raise ToolError("\n".join((*lines, f"Received arguments: {received}")))


def _shortened(text: str) -> str:
    if len(text) <= MAX_SHOWN:
        return text
    half = MAX_SHOWN // 2
    return f"{text[:half]} … {text[-half:]}"
