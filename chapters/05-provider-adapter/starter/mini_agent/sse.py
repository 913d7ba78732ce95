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
    raise NotImplementedError("step 5.3: decode_chunks")
    yield ""  # a `yield` makes this an async generator; yours will have its own


async def read_sse_messages(pieces: AsyncIterable[str]) -> AsyncGenerator[SseMessage, None]:
    """Text to messages. A blank line ends a message; comments, `id` and `retry` are passed over.

    CR, LF and CRLF end a line, and nothing else does. A message without a data line is dropped,
    as the standard says. A last message that lacks its blank line is taken, which the standard
    forbids: here nothing must be lost without a word.
    """
    raise NotImplementedError("step 5.3: read_sse_messages")
    yield SseMessage("")
