"""Read a README: its headings, fences, links and code spans. It knows Markdown and no course."""

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
    def headings(self) -> dict[str, int]:
        """Each heading's text, with its line."""
        found = ((n, _HEADING.match(line)) for n, line in self.lines)
        return {match["text"]: n for n, match in found if match}

    @property
    def links(self) -> list[tuple[int, str]]:
        """Each link's target, with its line."""
        return [
            (n, match["target"].strip("<>"))
            for n, line in self.lines
            for match in _LINK.finditer(_CODE.sub("", line))
        ]

    @property
    def code(self) -> list[tuple[int, str]]:
        """Each inline code span, with its line."""
        return [(n, m["code"].strip()) for n, line in self.lines for m in _CODE.finditer(line)]


def read(path: Path) -> Readme:
    """Cut the README at `path` into fences and prose."""
    fences: list[Fence] = []
    prose: list[tuple[int, str]] = []
    opened: tuple[int, str, str, str] | None = None  # line, indent, ticks, info
    inside: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                opened = (number, fence["indent"], fence["ticks"], fence["info"].strip())
                inside = []
            else:
                prose.append((number, line))
            continue
        at, indent, ticks, info = opened
        if fence and not fence["info"].strip() and fence["ticks"].startswith(ticks):
            fences.append(Fence(at, info, "\n".join(inside)))
            opened = None
        else:
            inside.append(_unindent(line, indent))
    return Readme(tuple(fences), tuple(prose))


def _unindent(line: str, indent: str) -> str:
    if line.startswith(indent):
        return line[len(indent) :]
    return line[len(indent.rstrip()) :] if line.startswith(indent.rstrip()) else line
