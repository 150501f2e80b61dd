"""A command's output: safe for the terminal, unaffected by a reader that has left, progress on stderr."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import OutputWrapper

from tasks.support.reading import one_line

EVERY_SECONDS = 2.0


def printable(text: str) -> str:
    """Escape control characters: names come from anybody and must not control the operator's terminal.

    >>> printable("queue \\x1b[2J")
    'queue \\\\x1b[2J'
    """
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def counted(number: int, noun: str = "task") -> str:
    """`1 task`, `2 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def said(participle: str, options: Mapping[str, Any]) -> str:
    """`deleted`, or in a dry run `would be deleted`."""
    return f"would be {participle}" if options["dry_run"] else participle


def write_line(stream: OutputWrapper, text: str) -> None:
    """Write one line to a stream of the command; if its reader has left (`| head`), discard all further output."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        abandon(stream)


def abandon(stream: OutputWrapper) -> None:
    """Redirect the stream to /dev/null, so that the interpreter's flush at exit does not fail."""
    with contextlib.suppress(OSError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligned columns, the first to the left and the others to the right; None is shown as a dash.

    A row stays one line: names stored by earlier versions may contain line breaks.
    """
    cells = [list(headings), *(["-" if cell is None else one_line(str(cell)) for cell in row] for row in rows)]
    first, *others = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [[row[0].ljust(first), *map(str.rjust, row[1:], others)] for row in cells]
    return "\n".join("  ".join(row).rstrip() for row in aligned)


class ProgressLine:
    """Progress of the work: one line rewritten on a terminal, a plain line every two seconds elsewhere."""

    def __init__(self, stream: OutputWrapper) -> None:
        self.stream = stream
        self.shown_at = time.monotonic()
        self.is_on_line = False

    def show(self, done: int, total: int | None) -> None:
        text = f"{done} done" if total is None else f"{done} of {total} done"
        if self.stream.isatty():
            self._rewrite(text if total is None or done < total else "")
        elif time.monotonic() - self.shown_at >= EVERY_SECONDS:
            self.shown_at = time.monotonic()
            write_line(self.stream, f"{text}\n")

    def close(self) -> None:
        if self.is_on_line:
            self._rewrite("")

    def _rewrite(self, text: str) -> None:
        self.is_on_line = bool(text)
        with contextlib.suppress(BrokenPipeError):
            self.stream.write(f"\r\033[K{text}", style_func=str, ending="")
            self.stream.flush()
