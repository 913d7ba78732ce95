"""What a worker prints, as text that is safe to show: cut to a size, test by test."""

import threading


def safe_text(text: str) -> str:
    """`text` for any terminal or file: control characters and lone surrogates are written out."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char in "\n\t"
        or (char >= " " and not "\x7f" <= char < "\xa0" and not "\ud800" <= char < "\ue000")
        else f"\\x{ord(char):02x}"
        if ord(char) < 256
        else f"\\u{ord(char):04x}"
        for char in text
    )


class _Clip:
    """The start and the end of a stream of bytes, and how many there were between."""

    def __init__(self, limit: int) -> None:
        self._room = limit * 3 // 4
        self._keep = limit - self._room
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes | memoryview) -> None:
        self._total += len(data)
        room = self._room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data):
            self._tail += data[-self._keep :]
            if len(self._tail) > self._keep:
                del self._tail[: len(self._tail) - self._keep]

    def text(self) -> str:
        cut = self._total - len(self._head) - len(self._tail)
        head, tail = (
            bytes(part).decode("utf-8", "backslashreplace") for part in (self._head, self._tail)
        )
        middle = f"\n[{cut} bytes cut]\n" if cut > 0 else ""
        return safe_text((head + middle + tail).replace("\r\n", "\n"))


class Output:
    """What a worker prints, cut into segments by the marker it writes around each test."""

    def __init__(self, marker: bytes, limit: int) -> None:
        self._marker = marker
        self._limit = limit
        self._done: list[str] = []
        self._clip = _Clip(limit)
        self._held = b""
        self._closed = False
        self._changed = threading.Condition()

    def feed(self, data: bytes) -> None:
        data = self._held + data
        with self._changed:
            while (at := data.find(self._marker)) >= 0:
                self._clip.add(data[:at])
                self._done.append(self._clip.text())
                self._clip = _Clip(self._limit)
                data = data[at + len(self._marker) :]
                self._changed.notify_all()
            keep = _overlap(data, self._marker)
            self._held = data[len(data) - keep :]
            self._clip.add(data[: len(data) - keep])

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def segment(self, number: int) -> str:
        """The output between two markers. It is on its way when it is asked for."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._done) > number, timeout=1.0)
            return self._done[number] if number < len(self._done) else ""

    def rest(self) -> str:
        """What came since the last marker, after the process was stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, timeout=0.3)
            self._clip.add(self._held)
            self._held = b""
            return self._clip.text()


def _overlap(data: bytes, marker: bytes) -> int:
    """How many bytes at the end of `data` may be the start of a marker."""
    for size in range(min(len(marker) - 1, len(data)), 0, -1):
        if data.endswith(marker[:size]):
            return size
    return 0
