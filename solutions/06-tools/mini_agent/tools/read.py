"""The tool `read`: a text file, from inside one directory and from nowhere else."""

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

from mini_agent.abort import AbortSignal
from mini_agent.tools.tool import Tool, ToolError
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
    file = resolve_inside(root, path)
    try:
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ToolError(f"{path or '.'} is a directory")
        if not stat.S_ISREG(mode):
            raise ToolError(f"{path} is not a regular file")  # to open a pipe would wait for ever
        with file.open("rb") as opened:
            data = opened.read(max_bytes + 1)  # whatever its size says, it is read no further
            size = os.fstat(opened.fileno()).st_size
    except OSError as error:
        # Its own text names the whole path on this machine, which is nothing to the model.
        raise ToolError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > max_bytes:
        raise ToolError(f"{path} has {size} bytes, and the limit is {max_bytes}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not UTF-8 text: byte {error.start} is not") from None


def resolve_inside(root: Path, path: str) -> Path:
    """The real path of `path` below `root`. Raises ToolError if it is absolute or leads out.

    A `..` is refused wherever it stands. Symbolic links are followed first and judged by where
    they end, so a link that stays inside is as good as a file.
    """
    relative = Path(path)
    if relative.anchor or ".." in relative.parts:
        raise ToolError(f"{path} is not inside the project: give a relative path without `..`")
    home = root.resolve()
    try:
        real = (home / relative).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links; a null character
        raise ToolError(f"{path!r} is not a usable path") from None
    if not real.is_relative_to(home):
        raise ToolError(f"{path} is a link that leads out of the project")
    return real
