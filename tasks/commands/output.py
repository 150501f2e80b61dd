"""A command's output: tables, safe for the terminal, unaffected by a reader that has left, progress on stderr."""

import contextlib
import io
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from django.core.management.base import OutputWrapper

from tasks.support.reading import one_line

if TYPE_CHECKING:
    from rich.table import Table as RichTable

EVERY_SECONDS = 2.0
ENDLESS = 100_000  # columns, where nothing is cut
GAP = 2  # columns between those of a table; 1 where it is tight
LEAST_WIDE = 20  # columns that the widest text keeps before it is
LEAST_TEXT = 8  # columns that every text keeps, even if the lines are longer than the window
NUMBER = re.compile(r"-|[-+]?\d[\d.,]*( ?(ms|s|min|h|d|%))?( \d+ min)?")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# The style of a cell with this text.
STYLES = {
    **dict.fromkeys(("FAILED", "dead", "missing", "Worker dead", "Failed", "UNSAFE"), "red"),
    **dict.fromkeys(("CANCELLED", "paused", "ask", "silent", "restarted", "Row locked", "Cancelling"), "yellow"),
    **dict.fromkeys(("Paused", "Worker silent", "No worker for queue", "No worker knows task"), "yellow"),
    **dict.fromkeys(("COMPLETED", "Completed", "clean", "alive"), "green"),
    **dict.fromkeys(("PROCESSING", "Running", "In batch"), "cyan"),
    **dict.fromkeys(("0", "-"), "dim"),
}


def printable(text: str) -> str:
    """Escape control characters: names come from anybody and must not control the operator's terminal.

    >>> printable("queue \\x1b[2J")
    'queue \\\\x1b[2J'
    """
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def counted(number: int, noun: str = "task", nouns: str = "") -> str:
    """`1 task`, `2 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or noun + 's'}"


def said(participle: str, options: Mapping[str, Any]) -> str:
    """`deleted`, or in a dry run `would be deleted`."""
    return f"would be {participle}" if options["dry_run"] else participle


@dataclass(frozen=True)
class Window:
    """The terminal that output goes to; without one `columns` is 0, and nothing is cut."""

    columns: int = 0
    rows: int = 0
    is_coloured: bool = False

    @classmethod
    def of(cls, stream: OutputWrapper, options: Mapping[str, Any]) -> Self:
        is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        columns, rows = shutil.get_terminal_size() if is_terminal else (0, 0)
        return cls(columns, rows, options["force_color"] or (is_terminal and not options["no_color"]))

    def fitting(self, lines: Sequence[str]) -> list[str]:
        """As many of the first lines as the window shows, and the number of the others."""
        left = self.rows - 2
        for number, line in enumerate(lines):
            left -= max(1, -(-len(ESCAPE.sub("", line)) // max(1, self.columns)))
            if left < 0:
                return [*lines[:number], f"… and {len(lines) - number} more lines"]
        return list(lines)


@dataclass(frozen=True)
class Table:
    """Rows under headings: text to the left, numbers to the right. None is shown as a dash.

    A row stays one line: names stored by earlier versions may contain line breaks. `alarming`: headings of numbers that
    should be zero.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    alarming: Sequence[str] = ()


@dataclass(frozen=True)
class Lines:
    """Lines that the window cuts; those in `heads` stand out."""

    lines: Sequence[str]
    heads: frozenset[int] = frozenset()


def branches(entries: Sequence[tuple[int, str]]) -> Lines:
    """The lines of a forest, each given with its level from 0; roots stand out.

    >>> print(render(branches([(0, "812"), (1, "902"), (2, "915"), (1, "903")])))
    812
    ├ 902
    │ └ 915
    └ 903
    """
    lines: list[str] = []
    following: set[int] = set()  # levels at which another line follows below the same parent
    for level, text in reversed(entries):
        trunk = "".join("│ " if above in following else "  " for above in range(1, level))
        fork = ("├ " if level in following else "└ ") if level else ""
        lines.append(trunk + fork + text)
        following = {above for above in following if above < level} | {level}
    heads = frozenset(number for number, (level, _) in enumerate(entries) if not level)
    return Lines(lines[::-1], heads)


Part = str | Table | Lines
NOWHERE = Window()


def render(parts: Part | Sequence[Part], window: Window = NOWHERE) -> str:
    """The parts of a text with an empty line between them, as wide as the window."""
    parts = [parts] if isinstance(parts, (str, Table, Lines)) else parts
    return "\n\n".join(printable(part) if isinstance(part, str) else _laid_out(part, window) for part in parts)


def _laid_out(part: Table | Lines, window: Window) -> str:
    if isinstance(part, Lines) and not window.columns:
        return "\n".join(map(one_line, part.lines))
    from rich.console import Console  # takes 50 ms, which only a command that prints a table spends
    from rich.text import Text

    grid, least = _grid(part, window.columns or ENDLESS) if isinstance(part, Table) else (None, 0)
    console = Console(
        file=io.StringIO(), width=max(least, window.columns or ENDLESS), height=window.rows or 25, force_terminal=True,
        color_system="standard" if window.is_coloured else None, no_color=False, highlight=False, legacy_windows=False,
    )  # fmt: skip
    with console.capture() as capture:
        if isinstance(part, Lines):
            for number, line in enumerate(part.lines):
                style = "bold" if number in part.heads else ""
                console.print(Text(one_line(line), style), no_wrap=True, overflow="ellipsis")
        else:
            console.print(grid)
    text = capture.get().removesuffix("\n")
    return text if window.is_coloured else "\n".join(map(str.rstrip, text.split("\n")))


def _grid(table: Table, width: int) -> tuple["RichTable", int]:
    """The table for rich, and its least width. Only text becomes narrower than its cell, the widest column first."""
    from rich.table import Table as RichTable
    from rich.text import Text

    rows = [["-" if cell is None else one_line(str(cell)) for cell in row] for row in table.rows]
    columns = list(zip(table.headings, *rows, strict=True))
    *others, widest = sorted(max(map(len, column)) for column in columns)
    is_tight = sum(others) + min(widest, LEAST_WIDE) + GAP * len(others) > width
    gap = 1 if is_tight else GAP
    least = gap * len(others)
    grid = RichTable(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for heading, *column in columns:
        is_number = all(map(NUMBER.fullmatch, column))
        longest = max(map(len, (heading, *column)))
        least += longest if is_number else min(longest, LEAST_TEXT)
        grid.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number)
    for row in rows:
        alarms = ("red" if heading in table.alarming else "" for heading in table.headings)
        styles = [STYLES.get(text, alarm) for text, alarm in zip(row, alarms, strict=True)]
        cells = zip(row, styles, strict=True)
        grid.add_row(*(Text(text, style, no_wrap=True, overflow="ellipsis") for text, style in cells))
    return grid, least


def write_line(stream: OutputWrapper, text: str) -> bool:
    """Write one line to a stream of the command; if its reader has left (`| head`), discard all further output.

    Returns False if it has.
    """
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        abandon(stream)
        return False
    return True


def abandon(stream: OutputWrapper) -> None:
    """Redirect the stream to /dev/null, so that the interpreter's flush at exit does not fail."""
    with contextlib.suppress(OSError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class ProgressLine:
    """Progress of the work: one line rewritten on a terminal, a plain line every two seconds elsewhere.

    `label` says of what, when there are several.
    """

    def __init__(self, stream: OutputWrapper, label: str = "") -> None:
        self.stream = stream
        self.label = f"{label}: " if label else ""
        self.shown_at = time.monotonic()
        self.is_on_line = False

    def show(self, done: int, total: int | None) -> None:
        text = self.label + (f"{done} done" if total is None else f"{done} of {total} done")
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
