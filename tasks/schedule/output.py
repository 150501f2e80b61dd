"""Bounded storage for a command's output."""

from collections import deque

KEPT_BYTES = 32_768  # at each end


class HeadAndTail:
    """The first and the last bytes of a stream of any length, in bounded memory.

    >>> kept = HeadAndTail(4)
    >>> for chunk in (b"one ", b"two ", b"three"):
    ...     kept.add(chunk)
    >>> kept.text()
    'one \\n[… 5 bytes left out …]\\nhree'
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.kept_bytes = kept_bytes
        self.total = 0
        self._head = b""
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.kept_bytes - len(self._head)
        self._head += chunk[:room]
        rest = chunk[room:][-self.kept_bytes :]
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
        while self._tail and self._tail_size - len(self._tail[0]) >= self.kept_bytes:
            self._tail_size -= len(self._tail.popleft())

    def text(self) -> str:
        """Head and tail as text, with the number of bytes between them; invalid UTF-8 is replaced."""
        tail = b"".join(self._tail)[-self.kept_bytes :]
        left_out = self.total - len(self._head) - len(tail)
        if not left_out:
            return (self._head + tail).decode(errors="replace")
        return (
            f"{self._head.decode(errors='replace')}\n[… {left_out} bytes left out …]\n{tail.decode(errors='replace')}"
        )
