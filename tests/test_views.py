"""The notebooks' pictures, on data that nobody would choose."""

import asyncio
import html.parser
import importlib
import sys
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def _load_views() -> ModuleType:
    sys.path.append(str(NOTEBOOKS))  # as in a notebook, whose folder is on the path
    try:
        return importlib.import_module("views")
    finally:
        sys.path.remove(str(NOTEBOOKS))


views: Any = _load_views()


@dataclass
class Block:
    """What views read of a content block."""

    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    raw_arguments: str | None = None
    arguments: dict[str, Any] | None = None


@dataclass
class Event:
    """What views read of a model's event."""

    type: str
    content_index: int = 0
    delta: str = ""
    partial: tuple[Block, ...] = ()


@dataclass
class Said:
    """What views read of an SSE message."""

    data: str


class Page(html.parser.HTMLParser):
    """The tags and the text of a page; fails on a tag that is closed out of turn."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(markup)
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("col", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


SAFE_TAGS = {
    *("div", "strong", "table", "thead", "tbody", "tr", "th", "td", "colgroup", "col", "p"),
    *("details", "summary", "pre"),
}

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></table>",
    "&lt;b&gt; &amp;",
    "\x1b[2J\x00\x07",
    "\u202eright to left",
    "a\r\nb\tc\u2028d",
    "\ud83d",
    "👩‍👩‍👧 🎈 正在读取",
    "",
    "x" * 10_000,
]


def pictures_of(text: str) -> list[Any]:
    """Every kind of picture, with `text` wherever a text can stand."""
    data = f"data: {text}\n\n".encode("utf-8", "surrogatepass")
    reads = [data[at : at + 7] for at in range(0, len(data), 7)]
    call = Block("toolCall", id=text, name=text, raw_arguments=text)
    events = [
        Event("start"),
        Event("text_delta", 0, text, (Block("text", text),)),
        Event("toolcall_delta", 1, text, (Block("text", text), call)),
    ]
    groups = [[event] for event in events]
    upper = views.message_lane(data, [Said(text)])
    return [
        views.lanes(text, views.read_lane(reads), views.line_lane(data), upper, reads=reads),
        views.lanes("under", upper, views.lane_under(upper, [[text]], text)),
        views.table(text, (text, text), [(text, [text, text])]),
        views.held_text(text, [text], [[Said(text)], []]),
        views.slots(text, [text] * 3, [*groups, []]),
        views.snapshots(text, events),
        views.events_table(text, events),
        views.side_by_side(text, (text, [text]), (text, [])),
    ]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_text_holds_is_shown_and_never_obeyed(text: str) -> None:
    """HTML is well formed and has no tag but ours; no control character is left; both can be
    written as UTF-8."""
    for view in pictures_of(text):
        page = Page(view._repr_html_())

        assert set(page.tags) <= SAFE_TAGS
        for form in (repr(view), view._repr_html_()):
            form.encode()
            assert not set(form) & set("\x00\x07\x1b\r\u202e\u2028\ud83d")


def test_a_payload_of_html_reads_as_it_is() -> None:
    """Escaped once, and not twice."""
    view = views.table("t", ("a",), [("<b>&amp;</b>",)])

    assert "<b>&amp;</b>" in Page(view._repr_html_()).text
    assert "&lt;b&gt;&amp;amp;&lt;/b&gt;" in view._repr_html_()


@pytest.mark.parametrize(
    "view",
    [
        views.lanes("nothing"),
        views.lanes("nothing", views.read_lane([]), views.line_lane(b"")),
        views.lanes("nothing", views.read_lane([b"", b""]), reads=[b"", b""]),
        views.lanes("nothing", views.lane_under(views.read_lane([]), [[]], "x")),
        views.timeline("nothing", []),
        views.table("nothing", ("a",), []),
        views.slots("nothing", [], [[]]),
        views.snapshots("nothing", []),
        views.events_table("nothing", []),
        views.side_by_side("nothing", ("a", []), ("b", [])),
        views.held_text("nothing", [], [[]]),
    ],
    ids=range(11),
)
def test_nothing_is_a_picture_too(view: Any) -> None:
    """An empty stream says so, and raises nothing."""
    assert "nothing" in repr(view)
    Page(view._repr_html_())


def test_5000_events_make_a_picture_that_a_browser_bears() -> None:
    """Long lists are shown at both ends, and what is left out is counted."""
    events = [Event("text_delta", 0, "x", (Block("text", "x" * at),)) for at in range(5000)]
    reads = [b"x"] * 5000
    groups = [[event] for event in events]

    table = views.events_table("many", events)
    lane = views.lanes("many", views.read_lane(reads), reads=reads)
    partials = views.snapshots("many", events[:200])
    slots = views.slots("many", list(range(5000)), [*groups, []])

    assert "4960 more" in repr(table)
    assert "5000 in all, 56 of them drawn as one" in repr(lane)
    assert "188 events in the middle are left out" in repr(partials)
    for view in (table, lane, slots):
        assert len(view._repr_html_()) < 400_000


def test_a_cut_inside_a_character_is_found_and_marked() -> None:
    """Cuts between characters are not; a character of four bytes can be cut at three places."""
    data = "a读🎈b".encode()
    found = [views.cuts_inside_characters([data[:at], data[at:]]) for at in range(1, len(data))]

    assert [[cut[1:] for cut in cuts] for cuts in found] == [
        [],
        [("读", 1, 2)],
        [("读", 2, 1)],
        [],
        [("🎈", 1, 3)],
        [("🎈", 2, 2)],
        [("🎈", 3, 1)],
        [],
    ]
    view = views.lanes("cut", views.read_lane([data[:3], data[3:]]), reads=[data[:3], data[3:]])
    assert "▲ byte 3: the read ends inside 读, 2 of its 3 bytes before the cut" in repr(view)
    assert "▲" in Page(view._repr_html_()).text


def test_bytes_that_are_no_text_are_cut_nowhere() -> None:
    """A stray continuation byte belongs to no character."""
    assert views.cuts_inside_characters([b"\xff", b"\x80\x80\x80\x80", b"\xbb", b""]) == []


def test_lines_end_at_cr_lf_and_crlf_only() -> None:
    """U+2028 and a form feed stand inside a line."""
    data = "a\r\nb\rc\n\n\u2028d\x0ce".encode()

    lane = views.line_lane(data)

    parts = [data[segment.start : segment.end] for segment in lane.segments]
    assert parts == [b"a\r\n", b"b\r", b"c\n", b"\n", "\u2028d\x0ce".encode()]


def test_a_message_reaches_over_its_blank_line() -> None:
    """A comment and a message without data are none; a last one may lack its blank line."""
    data = b"\xef\xbb\xbfdata: a\n\n: ping\n\nevent: x\n\nevent: y\ndata:b\n\ndata"

    lane = views.message_lane(data, [Said("a"), Said("b"), Said("")])

    assert [data[segment.start : segment.end] for segment in lane.segments] == [
        b"\xef\xbb\xbfdata: a\n\n",
        b"event: y\ndata:b\n\n",
        b"data",
    ]


def test_a_message_that_did_not_come_out_is_seen_to_be_missing() -> None:
    """The picture is of what came out, and the bytes of the rest are still there."""
    lane = views.message_lane(b"data: a\n\ndata: b\n\n", [Said("a")])

    assert [segment.label for segment in lane.segments] == ["a", "(none)"]


def test_held_back_is_what_went_in_and_did_not_come_out() -> None:
    """By bytes of text; a byte order mark that was dropped is not held."""
    bom = views.held_bytes("h", [b"\xef\xbb\xbfa\xe8", b"\xaf\xbb"], [["a"], ["读"], []])

    rows = [line.split() for line in repr(bom).split("\n")[3:]]
    assert rows == [
        ["1", "5", "a", "e8"],
        ["2", "2", "读", "nothing"],
        ["end", "0", "nothing"],
    ]


def test_after_each_sees_what_a_stage_gives_between_two_items() -> None:
    """Also what comes after the end, and from a stage that works in a task of its own."""

    async def in_a_task(items: AsyncIterable[int]) -> AsyncIterator[int]:
        queue: asyncio.Queue[int | None] = asyncio.Queue()

        async def work() -> None:
            async for item in items:
                for _ in range(item):
                    queue.put_nowait(item)
            queue.put_nowait(99)
            queue.put_nowait(None)

        task = asyncio.create_task(work())
        while (item := await queue.get()) is not None:
            yield item
        await task

    assert asyncio.run(views.after_each(in_a_task, [2, 0, 1])) == [[2, 2], [], [1], [99]]


def test_the_text_twin_is_aligned_for_wide_characters() -> None:
    """A Chinese character takes two columns, so the next column begins in the same place."""
    lines = repr(views.table("t", ("a", "b"), [("读取", "x"), ("abcd", "y")])).split("\n")

    assert lines[3:] == ["读取  x", "abcd  y"]


def test_the_text_twin_leaves_nothing_out() -> None:
    """A long cell is broken into lines, and a list is shown line by line."""
    text = repr(views.table("t", ("a",), [(["one", "x" * 130],)]))

    assert text.split("\n")[3:] == ["one", "x" * 60, "x" * 60, "x" * 10]


def test_a_timeline_shows_what_has_not_ended() -> None:
    """A tool that never answers has a bar to the end, which says so."""

    @dataclass
    class Start:
        type: str
        tool_call: Block | None = None

    view = views.timeline(
        "t", [Start("agent_start"), Start("tool_execution_start", Block("toolCall", id="c"))]
    )

    assert "(not ended)" in Page(view._repr_html_()).text


def test_no_colour_is_fixed() -> None:
    """Text takes the page's colour; the only shade is a transparent grey, good on any ground."""
    for view in pictures_of("x"):
        markup = view._repr_html_()
        assert "color:#" not in markup
        assert " color:" not in markup.replace("background-color:", "")
