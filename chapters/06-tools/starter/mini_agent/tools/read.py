"""The tool `read`: a text file, from inside one directory and from nowhere else."""

import asyncio
from pathlib import Path
from typing import Any

from mini_agent.abort import AbortSignal
from mini_agent.tools.tool import Tool
from mini_agent.types import ToolDefinition

MAX_BYTES = 100_000


def read_tool(root: Path, max_bytes: int = MAX_BYTES) -> Tool:
    """The tool `read`, which takes a `path` relative to `root`."""

    async def execute(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        # In a thread: a slow disk must not hold up the text that is streaming meanwhile.
        return await asyncio.to_thread(read_text, root, arguments["path"], max_bytes)

    return Tool(
        ToolDefinition(
            name="read",
            description="Read a UTF-8 text file of the project.",
            parameters={
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "relative, such as docs/README.md"}
                },
                "required": ["path"],
                "additionalProperties": False,
            },
        ),
        execute,
    )


def read_text(root: Path, path: str, max_bytes: int = MAX_BYTES) -> str:
    """The text of the file at `path` below `root`.

    Raises ToolError for a path that leads out of `root`, and for whatever is not a regular
    file of UTF-8 text with at most `max_bytes` bytes.
    """
    raise NotImplementedError("step 6.5")


def resolve_inside(root: Path, path: str) -> Path:
    """The real path of `path` below `root`. Raises ToolError if it is absolute or leads out.

    A `..` is refused wherever it stands. Symbolic links are followed first and judged by where
    they end, so a link that stays inside is as good as a file.
    """
    raise NotImplementedError("step 6.5")
