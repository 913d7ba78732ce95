"""Server-sent events: from bytes to messages. Knows the format, and no provider.

Two stages, each with its own memory between reads: `decode_chunks` holds back the bytes of
an unfinished character, `read_sse_messages` the text of an unfinished line and the lines of an
unfinished message. Where a read ends means nothing to either.
"""

import codecs
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SseMessage:
    """One dispatched message: its data lines joined by LF, and its event name."""

    data: str
    event: str = "message"


async def decode_chunks(chunks: AsyncIterable[bytes]) -> AsyncGenerator[str, None]:
    """Bytes to text, with one decoder for the whole stream.

    A leading byte order mark is dropped. A byte that is not UTF-8 becomes U+FFFD, as the SSE
    standard has it.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    async for chunk in chunks:
        piece = decoder.decode(chunk)
        if piece:
            yield piece
    rest = decoder.decode(b"", final=True)
    if rest:
        yield rest


async def read_sse_messages(pieces: AsyncIterable[str]) -> AsyncGenerator[SseMessage, None]:
    """Text to messages. A blank line ends a message; comments, `id` and `retry` are passed over.

    A message without a data line is dropped, as the standard says. A last message that lacks
    its blank line is taken, which the standard forbids: the one who reads the data can tell
    whether something is missing, and here nothing must be lost without a word.
    """
    lines = _LineSplitter()
    message = _MessageBuilder()
    async for piece in pieces:
        for line in lines.feed(piece):
            if line:
                message.add(line)
            elif (built := message.build()) is not None:
                yield built
    message.add(lines.rest())
    if (built := message.build()) is not None:
        yield built


class _LineSplitter:
    """Cuts text into lines. CR, LF and CRLF end a line, and nothing else does.

    `str.splitlines()` would also cut at U+2028 and seven other characters, all of which may
    stand inside a JSON string.
    """

    def __init__(self) -> None:
        self._line: list[str] = []  # a list: adding to a long string would copy it each time
        self._after_cr = False

    def feed(self, piece: str) -> list[str]:
        """The lines that end in this piece."""
        if self._after_cr and piece:
            piece = piece.removeprefix("\n")  # the second half of a CRLF that was cut in two
            self._after_cr = False
        if "\r" in piece:
            self._after_cr = piece.endswith("\r")
            piece = piece.replace("\r\n", "\n").replace("\r", "\n")
        lines = piece.split("\n")
        self._line.append(lines[0])
        if len(lines) == 1:
            return []
        lines[0] = "".join(self._line)
        self._line = [lines.pop()]
        return lines

    def rest(self) -> str:
        """What stands after the last line end."""
        return "".join(self._line)


class _MessageBuilder:
    """Collects the fields of one message until its blank line."""

    def __init__(self) -> None:
        self._data: list[str] = []
        self._event = ""

    def add(self, line: str) -> None:
        """Take one line that is not blank. A line that begins with a colon is a comment."""
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value

    def build(self) -> SseMessage | None:
        """The message, or None where there was no data line. Begins the next one."""
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return SseMessage("\n".join(data), event or "message") if data else None
