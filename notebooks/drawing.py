"""How the pictures of views.py are drawn: text made safe, tables and lanes as HTML and as text.

Every picture is a table in HTML, which takes the colours of the page that it stands on, and the
same in plain text. Nothing is said by colour alone. All text is escaped; a control character is
spelt out.
"""

import html
import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MARK = "▲"

_WIDTH = 84  # characters of the text twin of a lane
_CELL = 60  # characters of one value

_LINE = "1px solid rgba(128,128,128,0.55)"
_FONT = "font-family:monospace; font-size:12px; line-height:1.35"
_TABLE = f"border-collapse:collapse; margin:0; {_FONT}"
_TD = (
    f"border:{_LINE}; padding:2px 6px; text-align:left; vertical-align:top;"
    " white-space:pre-wrap; background:transparent"
)
_SHADE = "rgba(128,128,128,0.22)"


@dataclass(frozen=True, slots=True)
class View:
    """A picture: HTML where a notebook can show it, and the text twin everywhere else."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a lane, from `start` to before `end`."""

    start: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Lane:
    """Stretches that stand side by side under one name. Gaps are allowed, overlaps are not."""

    name: str
    segments: tuple[Segment, ...]


# Text


def visible(text: str) -> str:
    """Controls, format characters and lone surrogates spelt out as in a Python string."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape", "surrogatepass").decode("ascii")
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        and character not in "\u200c\u200d"
        else character
        for character in text
    )


def cell_lines(value: object) -> list[str]:
    """The lines of a table's cell."""
    lines = value if isinstance(value, list | tuple) else [value]
    return [visible(str(line)) for line in lines] or [""]


def _wrapped(lines: Sequence[str], columns: int) -> list[str]:
    """`lines`, the long ones broken, so that nothing is left out of the text twin."""
    found = []
    for line in lines:
        part, width = "", 0
        for character in line:
            more = _wide(character)
            if width + more > columns:
                found.append(part)
                part, width = "", 0
            part, width = part + character, width + more
        found.append(part)
    return found


def escaped(text: str) -> str:
    return html.escape(visible(text))


def brief(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def ending(text: str) -> str:
    return text if len(text) <= _CELL else f"…{text[-_CELL + 1 :]}"


def _wide(text: str) -> int:
    """The columns that `text` takes in a fixed-width font."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(character) or character in "\u200c\u200d\ufe0f"
        else 2
        if unicodedata.east_asian_width(character) in ("W", "F")
        else 1
        for character in text
    )


def _fitted(text: str, columns: int) -> str:
    """`text` in exactly so many columns, cut with an ellipsis or filled up."""
    if _wide(text) > columns:
        text = f"{_wrapped([text], columns - 1)[0]}…" if columns > 1 else "…"[:columns]
    return text + " " * (columns - _wide(text))


# Rendering


def picture(text: str, caption: str, body: str, *, twin: bool = False) -> View:
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    same = (
        f"<details><summary>the same as text</summary>"
        f'<pre style="{_FONT}">{html.escape(lines)}</pre></details>'
        if twin
        else ""
    )
    head = f'<div style="margin:4px 0"><strong>{escaped(caption)}</strong></div>'
    return View(lines, f"<div>{head}{body}{same}</div>")


def table_as_text(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[Sequence[str]]]
) -> str:
    if not rows:
        return f"{visible(caption)}\n(nothing to show)"
    cells = [
        [_wrapped(cell, _CELL) for cell in row]
        for row in ([cell_lines(name) for name in header], *rows)
    ]
    widths = [max(_wide(line) for row in cells for line in row[at]) for at in range(len(header))]
    lines = [
        "  ".join(
            _fitted(cell[at] if at < len(cell) else "", width)
            for cell, width in zip(row, widths, strict=True)
        )
        for row in cells
        for at in range(max(map(len, row)))
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([visible(caption), *lines])


def table_as_html(header: Sequence[str], rows: Sequence[Sequence[Sequence[str]]]) -> str:
    if not rows:
        return "<p>(nothing to show)</p>"
    head = "".join(f'<th style="{_TD}">{escaped(name)}</th>' for name in header)
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{_TD}">{html.escape(chr(10).join(cell))}</td>' for cell in row)
        + "</tr>"
        for row in rows
    )
    return f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def merged(segments: Sequence[Segment], size: int) -> Iterable[Segment]:
    for at in range(0, len(segments), size):
        group = segments[at : at + size]
        yield Segment(group[0].start, group[-1].end, f"{group[0].label} …")


def _ticks(end: float) -> list[int]:
    """Round numbers along the axis, about eight of them."""
    step = next(
        step
        for power in range(12)
        for step in (10**power, 2 * 10**power, 5 * 10**power)
        if end / step <= 8
    )
    return [tick for tick in range(0, int(end), step) if not tick or end - tick > step / 4]


def lanes_as_text(rows: Sequence[Lane], end: float, unit: str) -> list[str]:
    names = [visible(lane.name) for lane in rows]
    margin = max(map(_wide, (unit, *names))) + 1
    scale = _WIDTH / end
    ruler = ""
    if unit == "byte":
        for tick in _ticks(end):
            column = round(tick * scale)
            if column >= len(ruler):
                ruler = f"{ruler:<{column}}{tick} "
    lines = [f"{_fitted(unit, margin)}{ruler}"] if ruler else []
    for name, lane in zip(names, rows, strict=True):
        drawn, column = "", 0
        for segment in lane.segments:
            start, stop = round(segment.start * scale), round(segment.end * scale)
            if segment.label == MARK:
                drawn += " " * max(0, start - column) + MARK
                column = max(start, column) + 1
                continue
            drawn += " " * max(0, start - column)
            start = max(start, column)
            if stop > start:
                drawn += "|" + _fitted(visible(segment.label), stop - start - 1)
                column = stop
        end_mark = "" if drawn.endswith(MARK) else "|"
        lines.append(f"{_fitted(name, margin)}{drawn}{end_mark}")
    return lines


def lanes_as_html(rows: Sequence[Lane], end: float, unit: str, whole: bool) -> str:
    ticks = _ticks(end) if unit == "byte" else []
    axis = [
        Segment(tick, following, str(tick))
        for tick, following in zip(ticks, [*ticks[1:], end], strict=False)
    ]
    drawn = [Lane(unit, tuple(axis)), *rows] if axis else list(rows)
    borders = sorted(
        {0.0, float(end)}
        | {float(x) for lane in drawn for s in lane.segments for x in (s.start, s.end)}
    )
    column_of = {border: at for at, border in enumerate(borders)}
    columns = "".join(
        f'<col width="{(right - left) / end * 88:.3f}%">'
        for left, right in itertools.pairwise(borders)
    )
    body = []
    for lane in drawn:
        cells, at = "", 0
        for number, segment in enumerate(lane.segments):
            start, stop = column_of[float(segment.start)], column_of[float(segment.end)]
            if start > at:
                cells += f'<td colspan="{start - at}" style="border:0; padding:0"></td>'
            cells += _segment(segment, stop - start, number, lane is drawn[0] and bool(axis), whole)
            at = stop
        if at < len(borders) - 1:
            cells += f'<td colspan="{len(borders) - 1 - at}" style="border:0; padding:0"></td>'
        name = f'<th style="{_TD}; border:0; white-space:nowrap">{escaped(lane.name)}</th>'
        body.append(f"<tr>{name}{cells}</tr>")
    layout = f"{_TABLE}; table-layout:fixed; width:100%"
    columns = f'<colgroup><col width="12%">{columns}</colgroup>'
    return f'<table style="{layout}">{columns}{"".join(body)}</table>'


def _segment(segment: Segment, span: int, number: int, is_axis: bool, whole: bool) -> str:
    """One stretch. Neighbours differ in shade, or all are shaded, and a line is between them."""
    if segment.label == MARK:  # it may be wider than the bytes that it stands for
        style = "border:0; border-left:2px solid; padding:0; overflow:visible; white-space:nowrap"
        return f'<td colspan="{span}" style="{style}">{MARK}</td>'
    shade = _SHADE if (number % 2 or whole) and not is_axis else "transparent"
    border = f"border:0; border-left:{_LINE}" if is_axis else f"border:{_LINE}"
    wrap = "white-space:pre-wrap; word-break:break-word" if whole else "white-space:nowrap"
    style = (
        f"{border}; padding:1px 2px; overflow:hidden; text-align:left; {wrap}; background:{shade}"
    )
    label = escaped(segment.label)
    return f'<td colspan="{span}" title="{label}" style="{style}">{label}</td>'
