"""Where one message ends and the next begins, so that a parser is never fed beyond the end of a message.

aiohttp gives up everything it parsed from a piece of data when something later in that piece is no HTTP; and it does
not say whether the beginning of another head is left in it. Fed message by message, a good request is answered whatever
follows it (RFC 9112, 9.3.2), and a head that never ends is known by its size and its age.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD_END = b"\r\n\r\n"
SLACK = 64 << 10
WASTE = 8  # bytes that may come for one of a chunked body


@dataclass(slots=True)
class Framing:
    """Follows one connection's bytes. ``cut`` each piece of data; when a head made a message, say so by ``opened``.

    head: bytes so far of a head that has not ended. left: bytes that the current body still has; None when nothing
    announces its end: then only the parser knows it, and says so by ``closed``. coded: bytes so far of such a body.
    """

    head: int = 0
    left: int | None = 0
    coded: int = 0
    _last: bytes = b""  # the end of the head so far: its end may come in two pieces

    def cut(self, data: bytes) -> int:
        """How much of data belongs to the current message; it is taken to be fed."""
        if self.left is None:
            self.coded += len(data)
            return len(data)
        if self.left:
            size = min(self.left, len(data))
            self.left -= size
            return size
        size = self._head_end(data)
        self.head += size
        return size

    def opened(self, left: int | None) -> None:
        """The head has ended, and a body follows: of so many bytes, 0 for none."""
        self.head, self.left, self.coded, self._last = 0, left, 0, b""

    def padded(self, body: int) -> bool:
        """Whether there is too little body in what came of it: chunk extensions are nothing to us, and may be endless
        (RFC 9112, 7.1.1). Chunks of one byte are silly, but they are chunks."""
        return self.coded > SLACK + WASTE * body

    def closed(self, piece: bytes) -> None:
        """The parser saw, within a piece of data, the end of a body that announced none. It ends as a head does."""
        self.head, self.left, self._last = int(not piece.endswith(HEAD_END)), 0, b""

    def _head_end(self, data: bytes) -> int:
        last = self._last
        if last:
            found = (last + data[:3]).find(HEAD_END)
            if found >= 0:
                self._last = b""
                return found + len(HEAD_END) - len(last)
        found = data.find(HEAD_END)
        if found >= 0:
            self._last = b""
            return found + len(HEAD_END)
        self._last = (last + data[-3:])[-3:]
        return len(data)
