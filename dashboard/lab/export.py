"""Export runs: JSON and CSV for programs, Markdown and SVG for people."""

import csv
import io
import json
from typing import Any

from dashboard.lab.board import Board, Line
from dashboard.lab.measure import Result

HEADINGS = (
    "pattern", "items/s", "duplicates", "lost updates", "lost work", "lost races", "wait p95", "queries/item",
    "verdict",
)  # fmt: skip


def rows(board: Board) -> list[dict[str, Any]]:
    """The numbers of the runs, with their plans."""
    return [{"run": line.run.pk, **line.run.plan, **line.result.as_dict()} for line in board.lines if line.result]


def as_json(board: Board) -> dict[str, Any]:
    return {"runs": rows(board), "conclusion": board.conclusion, "server": board.server}


def as_csv(board: Board) -> str:
    found, written = rows(board), io.StringIO()
    writer = csv.DictWriter(written, list(found[0]) if found else ["run"])
    writer.writeheader()
    writer.writerows(
        {name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()} for row in found
    )
    return written.getvalue()


def as_markdown(board: Board) -> str:
    """Text for a pull request: the load, the table, the conclusions, and the commands that repeat the runs."""
    table = [HEADINGS, ("---", *["---:"] * (len(HEADINGS) - 2), "---")]
    table += [_cells(line, line.result) for line in board.lines if line.result]
    said = ", ".join(filter(None, (board.load, board.server)))
    parts = [
        f"**Rowlock lab** {said}".rstrip(),
        "\n".join(f"| {' | '.join(cells)} |" for cells in table),
        "\n".join(f"- {sentence}" for sentence in board.conclusion),
        "\n".join(["```", *(line.command for line in board.lines if line.result), "```"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _cells(line: Line, result: Result) -> tuple[str, ...]:
    return (
        f"`{result.pattern}` {line.varied}".rstrip(),
        f"{result.items_per_second:.0f}",
        str(result.duplicates),
        str(result.lost_updates),
        str(result.lost_work),
        str(result.lost_races),
        f"{result.wait_ms_p95:.1f} ms",
        f"{result.queries_per_item:.2f}",
        verdict(line, result),
    )


def verdict(line: Line, result: Result) -> str:
    """One word or two, for readers who see only the table."""
    if result.stopped:
        return f"ended: {result.stopped}"
    if not result.is_clean:
        return "**UNSAFE**"
    return "fits this load" if line.fits else "clean"
