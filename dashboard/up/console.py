"""One terminal for several programs: each line starts with its program's name."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO

COLOURS = {"up": 1, "postgres": 34, "setup": 35, "worker": 32, "web": 36, "demo": 33}
NAME_WIDTH = max(map(len, COLOURS))
CHUNK_BYTES = 65_536
LAST_WORDS_SECONDS = 5.0


class Console:
    """Writes lines to `stream`, with coloured names on a terminal (unless NO_COLOR is set: https://no-color.org)."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._coloured = stream.isatty() and not os.environ.get("NO_COLOR")

    def line(self, name: str, text: str) -> None:
        """Write one line of the program `name`."""
        prefix = f"{name:<{NAME_WIDTH}} |"
        if self._coloured:
            prefix = f"\x1b[{COLOURS.get(name, 0)}m{prefix}\x1b[0m"
        self.raw(f"{prefix} {text}")

    def raw(self, text: str) -> None:
        """Write a line without a name, which stands out among the others."""
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except OSError:
            self._close()

    def _close(self) -> None:
        """Discard further output and stop everything, because the reader is gone (`| head`, a closed terminal)."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        signal.raise_signal(signal.SIGHUP)

    @asynccontextmanager
    async def pipe(self, name: str) -> AsyncIterator[int]:
        """A descriptor for the output of program `name`; at the end waits briefly for its last output.

        asyncio's own pipes do not serve: some versions wait until every process that inherited the pipe ends, not only
        the program (https://github.com/python/cpython/issues/119710).
        """
        reading, writing = os.pipe()
        copying = asyncio.create_task(self._copy(name, reading))
        try:
            yield writing
        finally:
            os.close(writing)
            await asyncio.wait([copying], timeout=LAST_WORDS_SECONDS)
            copying.cancel()

    async def _copy(self, name: str, descriptor: int) -> None:
        """Copy the pipe's output line by line, however long the lines are."""
        output = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(descriptor, "rb")
        )
        unfinished = b""
        try:
            while chunk := await output.read(CHUNK_BYTES):
                *lines, unfinished = (unfinished + chunk).split(b"\n")
                for line in lines:
                    self.line(name, line.decode(errors="replace"))
        finally:
            transport.close()
        if unfinished:
            self.line(name, unfinished.decode(errors="replace"))
