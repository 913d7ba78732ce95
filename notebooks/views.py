"""Pictures for the notebooks: what went into a stage and what came out of it, side by side.

Only inputs and outputs are looked at, never the inside of the code under study. Outputs are read
by their public fields (`type`, `content_index`, `partial`), so this module knows no `mini_agent`.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from typing import Any, TypeVar

from drawing import (
    MARK,
    Lane,
    Segment,
    View,
    brief,
    cell_lines,
    ending,
    escaped,
    lanes_as_html,
    lanes_as_text,
    merged,
    picture,
    table_as_html,
    table_as_text,
    visible,
)

In = TypeVar("In")
Out = TypeVar("Out")

_ROWS = 40  # of a table; what is between the first and the last ones is counted, not shown
_SEGMENTS = 90  # of a lane; where there are more, neighbours are drawn as one
_COLUMNS = 12  # of snapshots side by side


# What came when


async def after_each(
    stage: Callable[[AsyncIterable[In]], AsyncIterable[Out]], items: Sequence[In]
) -> list[list[Out]]:
    """What `stage` gave after each of `items`, and last what it gave after their end.

    The next item is held back until the stage has had time to give all that it can.
    """
    groups: list[list[Out]] = [[] for _ in range(len(items) + 1)]
    now = 0

    async def one_by_one() -> AsyncIterator[In]:
        nonlocal now
        for at, item in enumerate(items):
            now = at
            yield item
            for _ in range(20):  # turns of the event loop: a stage may have tasks of its own
                await asyncio.sleep(0)
        now = len(items)

    async for output in stage(one_by_one()):
        groups[now].append(output)
    return groups


# Lanes on one axis


def read_lane(reads: Sequence[bytes], name: str = "reads") -> Lane:
    """The reads of a body, by number."""
    segments, at = [], 0
    for number, read in enumerate(reads, 1):
        segments.append(Segment(at, at + len(read), str(number)))
        at += len(read)
    return Lane(name, tuple(segments))


def line_lane(data: bytes) -> Lane:
    """The lines of a body, each with its line end."""
    return Lane(
        "lines",
        tuple(
            Segment(start, end, brief(data[start:end].decode("utf-8", "replace")))
            for start, end in _lines(data)
        ),
    )


def message_lane(data: bytes, messages: Sequence[Any], name: str = "SSE payloads") -> Lane:
    """The messages that came out, each over the bytes that it was made of."""
    ranges = _message_ranges(data)
    segments = [
        Segment(start, end, brief(str(message.data)))
        for (start, end), message in zip(ranges, messages, strict=False)
    ]
    segments += [Segment(start, end, "(none)") for start, end in ranges[len(messages) :]]
    return Lane(name, tuple(segments))


def lane_under(upper: Lane, groups: Sequence[Sequence[object]], name: str) -> Lane:
    """The outputs that came after each stretch of `upper`, under that stretch.

    What came after the end of all of them stands under the last one.
    """
    gathered = [list(group) for group in groups[: len(upper.segments)]]
    for group in groups[len(upper.segments) :]:
        if gathered:
            gathered[-1] += group
    segments: list[Segment] = []
    for above, group in zip(upper.segments, gathered, strict=False):
        share = (above.end - above.start) / max(1, len(group))
        for at, output in enumerate(group):
            start = above.start + at * share
            segments.append(Segment(start, start + share, _label(output)))
    return Lane(name, tuple(segments))


def cuts_inside_characters(reads: Sequence[bytes]) -> list[tuple[int, str, int, int]]:
    """Where a read ends inside a character: offset, the character, its bytes before and behind."""
    data = b"".join(reads)
    found: list[tuple[int, str, int, int]] = []
    at = 0
    for read in reads[:-1]:
        at += len(read)
        start = at
        while start > 0 and start > at - 4 and start < len(data) and data[start] & 0xC0 == 0x80:
            start -= 1
        for length in (2, 3, 4):
            try:
                character = data[start : start + length].decode("utf-8")
            except UnicodeDecodeError:
                continue
            if len(character) == 1 and start < at < start + length:
                found.append((at, character, at - start, start + length - at))
            break
    return found


def lanes(
    caption: str, *rows: Lane, unit: str = "byte", reads: Sequence[bytes] = (), whole: bool = False
) -> View:
    """Lanes under one axis, to scale. With `reads`, the cuts inside a character are marked.

    With `whole`, labels are shown in full, and the picture is as wide as they need.
    """
    end = max((segment.end for lane in rows for segment in lane.segments), default=0)
    if not end:
        return picture(
            f"{visible(caption)}\n(nothing to show)", caption, "<p>(nothing to show)</p>"
        )
    notes = [
        f"{MARK} byte {at}: the read ends inside {visible(character)}, {before} of its "
        f"{before + after} bytes before the cut"
        for at, character, before, after in cuts_inside_characters(reads)
    ]
    drawn = []
    for lane in rows:
        size = -(-len(lane.segments) // _SEGMENTS) or 1
        if size > 1:
            notes.append(f"{lane.name}: {len(lane.segments)} in all, {size} of them drawn as one")
            lane = Lane(lane.name, tuple(merged(lane.segments, size)))
        drawn.append(lane)
    marks = Lane(
        "cut inside",
        tuple(Segment(at, at + after, MARK) for at, _, _, after in cuts_inside_characters(reads)),
    )
    if marks.segments:
        drawn.insert(1, marks)
    if len(notes) > 12:
        notes = [*notes[:11], f"and {len(notes) - 11} more"]
    notes = list(map(visible, notes))
    text = "\n".join([visible(caption), *lanes_as_text(drawn, end, unit), *notes])
    body = lanes_as_html(drawn, end, unit, whole)
    body += "".join(f"<div>{escaped(note)}</div>" for note in notes)
    return picture(text, caption, body, twin=True)


def timeline(caption: str, events: Sequence[Any]) -> View:
    """The events of an agent's run, one column each: what had begun and was not over yet.

    The axis counts events and not seconds. Updates are left out. A bar reaches from the event that
    begins it to the one that ends it.
    """
    kept = [event for event in events if event.type != "message_update"]
    names: dict[str, list[Segment]] = {}
    open_at: dict[str, tuple[int, str]] = {}

    def begin(lane: str, at: int, label: str) -> None:
        names.setdefault(lane, [])
        open_at[lane] = (at, label)

    def finish(lane: str, at: int) -> None:
        if lane in open_at:
            start, label = open_at.pop(lane)
            names[lane].append(Segment(start, at + 1, label))

    for at, event in enumerate(kept):
        match event.type:
            case "agent_start":
                begin("run", at, "agent")
            case "turn_start":
                turns = len(names.get("turn", [])) + 1
                begin("turn", at, f"turn {turns}")
            case "message_start":
                begin("message", at, event.role)
            case "message_end":
                finish("message", at)
            case "tool_execution_start":
                begin(f"tool {event.tool_call.id}", at, event.tool_call.name)
            case "tool_execution_end":
                finish(f"tool {event.tool_call.id}", at)
            case "turn_end":
                finish("turn", at)
            case "agent_end":
                finish("run", at)
            case _:
                pass
    for lane, (start, label) in open_at.items():
        names[lane].append(Segment(start, len(kept), f"{label} (not ended)"))
    columns = Lane("event", tuple(Segment(at, at + 1, str(at + 1)) for at in range(len(kept))))
    rows = [Lane(name, tuple(segments)) for name, segments in names.items()]
    return lanes(caption, columns, *rows, unit="event", whole=True)


# Tables


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> View:
    """A plain table. A cell that is a list is shown line by line.

    Of a long table, the first and the last rows are shown, and the others counted.
    """
    cells = [[cell_lines(cell) for cell in row] for row in rows]
    hidden = len(cells) - _ROWS
    if hidden > 0:
        more = [["…"], [f"{hidden} more"], *[[""]] * (len(header) - 2)][: len(header)]
        cells = [*cells[: _ROWS - 5], more, *cells[-5:]]
    return picture(table_as_text(caption, header, cells), caption, table_as_html(header, cells))


def held_bytes(caption: str, reads: Sequence[bytes], groups: Sequence[Sequence[str]]) -> View:
    """After each read: the text that came out, and the bytes that went in and are not in it yet.

    `groups` is what `after_each` saw. The byte order mark counts as held until text comes.
    """
    data, out = b"", b""
    rows = []
    for number, (read, group) in enumerate(zip((*reads, b""), groups, strict=True), 1):
        data += read
        out += "".join(group).encode("utf-8", "replace")
        label = str(number) if number <= len(reads) else "end"
        held = data[_dropped_mark(data, out) + len(out) :]
        rows.append((label, len(read), "".join(group), held.hex(" ") or "nothing"))
    return table(caption, ("read", "bytes", "text out", "held back"), rows)


def held_text(caption: str, pieces: Sequence[str], groups: Sequence[Sequence[Any]]) -> View:
    """After each piece of text: the messages that came out, and the text held back for the next."""
    ends = [end for _, end in _message_ranges("".join(pieces).encode("utf-8", "surrogatepass"))]
    text, count = "", 0
    rows = []
    for number, (piece, group) in enumerate(zip((*pieces, ""), groups, strict=True), 1):
        text += piece
        count += len(group)
        done = ends[min(count, len(ends)) - 1] if count and ends else 0
        held = text.encode("utf-8", "surrogatepass")[done:].decode("utf-8", "replace")
        label = str(number) if number <= len(pieces) else "end"
        # The line end behind a last message is nobody's.
        held = "" if number > len(pieces) and not held.strip("\r\n") else held
        rows.append((label, len(group), len(held), ending(held) or "nothing"))
    return table(caption, ("after", "messages out", "held", "held back, its end"), rows)


def slots(caption: str, inputs: Sequence[object], groups: Sequence[Sequence[Any]]) -> View:
    """After each input: the content as the last event shows it, one column for each slot.

    The slot that an event of this step is about is marked with a star.
    """
    contents: list[tuple[Any, ...]] = []
    touched: list[set[int]] = []
    current: tuple[Any, ...] = ()
    for group in groups:
        for event in group:
            current = _content(event, current)
        contents.append(current)
        touched.append({event.content_index for event in group if hasattr(event, "content_index")})
    width = max((len(content) for content in contents), default=0)
    rows = []
    for label, content, stars in zip((*inputs, "(end)"), contents, touched, strict=False):
        shown = [
            f"{'* ' if at in stars else ''}{_block(content[at])}" if at < len(content) else ""
            for at in range(width)
        ]
        rows.append((label if isinstance(label, str) else _label(label), *shown))
    if rows and not groups[-1]:
        rows.pop()
    return table(caption, ("after", *(f"content[{at}]" for at in range(width))), rows)


def snapshots(caption: str, events: Sequence[Any]) -> View:
    """The partial of each event, side by side: a column for each event, a row for each slot."""
    shown = list(enumerate(events, 1))
    if len(shown) > _COLUMNS:
        shown = [*shown[: _COLUMNS - 3], *shown[-3:]]
    contents = [_content(event, ()) for _, event in shown]
    height = max((len(content) for content in contents), default=0)
    rows = [
        [
            f"content[{at}]",
            *(_block(content[at]) if at < len(content) else "" for content in contents),
        ]
        for at in range(height)
    ]
    header = ["", *(f"{number} {event.type}" for number, event in shown)]
    if len(shown) < len(events):
        caption = f"{caption} ({len(events) - len(shown)} events in the middle are left out)"
    return table(caption, header, rows)


def events_table(caption: str, events: Sequence[Any]) -> View:
    """Events in their order: number, type, and what each is about."""
    rows = [(at, event.type, _about(event)) for at, event in enumerate(events, 1)]
    return table(caption, ("", "event", "about"), rows)


def side_by_side(
    caption: str, left: tuple[str, Sequence[object]], right: tuple[str, Sequence[object]]
) -> View:
    """Two lists under their headings, one row for each pair; the shorter one ends in blanks."""
    height = max(len(left[1]), len(right[1]))
    columns = [[*side[1], *[""] * (height - len(side[1]))] for side in (left, right)]
    return table(caption, (left[0], right[0]), list(zip(*columns, strict=True)))


# Reading the fields of outputs


def _content(event: Any, before: tuple[Any, ...]) -> tuple[Any, ...]:
    """The content as this event shows it."""
    if hasattr(event, "partial"):
        return tuple(event.partial)
    message = getattr(event, "message", None)
    return tuple(message.content) if message is not None else before


def _block(block: Any) -> str:
    if block.type == "text":
        return f'"{block.text}"'
    arguments = block.raw_arguments or ""
    parsed = "" if block.arguments is None else "  (parsed)"
    return f"{block.id or '?'} {block.name or '?'} {arguments}{parsed}"


def _about(event: Any) -> str:
    """One line on an event of a model or of an agent."""
    inner = getattr(event, "event", None)
    if inner is not None:
        return f"{inner.type}: {_about(inner)}"
    if hasattr(event, "tool_call") and not hasattr(event, "result"):
        index = f"content {event.content_index}, " if hasattr(event, "content_index") else ""
        return f"{index}{event.tool_call.id} {event.tool_call.name}({event.tool_call.arguments})"
    if hasattr(event, "result"):
        return f"{event.tool_call.id}: {_text_of(event.result)!r}"
    if hasattr(event, "delta"):
        return f"content {event.content_index}, {event.delta!r}"
    if hasattr(event, "tool_results"):
        count = len(event.tool_results)
        return f"{count} result" if count == 1 else f"{count} results"
    if hasattr(event, "messages"):
        return f"{event.reason}, {len(event.messages)} new messages"
    if hasattr(event, "role"):
        return str(event.role)
    message = getattr(event, "message", None)
    if message is None:
        return ""
    blocks = ", ".join(_block(block) for block in message.content) or "no content"
    reason = getattr(message, "stop_reason", "")
    error = getattr(message, "error_message", None)
    said = f": {error}" if error else ""
    return f"{message.role}{f', {reason}' if reason else ''}{said}: {blocks}"


def _text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def _label(output: Any) -> str:
    """A few characters that tell one output from another."""
    if isinstance(output, str):
        return brief(output)
    kind = getattr(output, "type", None)
    if kind is not None:
        return str(kind)
    parts = [type(output).__name__.removesuffix("Chunk").lower()]
    for name in ("index", "id", "name", "arguments_delta", "delta", "reason"):
        value = getattr(output, name, None)
        if value is not None:
            parts.append(str(value))
    return brief(" ".join(parts))


# Bytes: lines and messages by the rules of SSE, told apart from the code under study


def _lines(data: bytes) -> list[tuple[int, int]]:
    """Where each line begins and ends, its line end included."""
    found, start, at = [], 0, 0
    while at < len(data):
        if data[at : at + 2] == b"\r\n":
            at += 2
        elif data[at : at + 1] in (b"\r", b"\n"):
            at += 1
        else:
            at += 1
            continue
        found.append((start, at))
        start = at
    if start < len(data):
        found.append((start, len(data)))
    return found


def _message_ranges(data: bytes) -> list[tuple[int, int]]:
    """Where each message with a data line begins and ends, its blank line included."""
    found: list[tuple[int, int]] = []
    begin, has_data = 0, False
    for start, end in _lines(data):
        line = data[start:end].rstrip(b"\r\n").removeprefix(b"\xef\xbb\xbf" if not start else b"")
        if not line:
            if has_data:
                found.append((begin, end))
            begin, has_data = end, False
        has_data = has_data or line == b"data" or line.startswith(b"data:")
    if has_data:
        found.append((begin, len(data)))
    return found


def _dropped_mark(data: bytes, out: bytes) -> int:
    mark = b"\xef\xbb\xbf"
    return len(mark) if out and data.startswith(mark) and not out.startswith(mark) else 0
