"""Read a chapter's README: headings, fences, links and quoted names. It knows Markdown, no course."""

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent>(?:> ?)*\s*)(?P<ticks>`{3,}|~{3,})\s*(?P<info>[^`]*)$")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.*?)\s*#*$")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target><[^>]*>|[^)\s]+)[^)]*\)")
_CODE = re.compile(r"(`+)(?P<code>.+?)\1")


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: the line of its opening, the words behind the ticks, and its text."""

    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info else ""

    @property
    def options(self) -> dict[str, str]:
        """The words after the language: "run" gives {"run": ""}, "exit=1" gives {"exit": "1"}."""
        pairs = (word.partition("=") for word in self.info.split()[1:])
        return {name: value for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class Readme:
    """A README cut into its fences and the lines of prose between them."""

    fences: tuple[Fence, ...]
    lines: tuple[tuple[int, str], ...]  # (line number, text) of what is not in a fence

    @property
    def _unindent(line: str, indent: str) -> str:
    if line.startswith(indent):
        return line[len(indent) :]
    return line[len(indent.rstrip()) :] if line.startswith(indent.rstrip()) else line
