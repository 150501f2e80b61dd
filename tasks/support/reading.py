"""Read input from people and other programs: reasons, names, whole numbers and sums.

Pages, commands and the Python API use these readers, so that each limit is written once. Migrations 0003 and 0004
repeat the limits for SQL. A reader returns the value, or raises Unreadable, which says what is wrong.
"""

import re
from decimal import Decimal
from typing import Any

from tasks.exceptions import RowlockError

# All in characters, and all repeated in the CHECKs.
LONGEST_REASON = 1000
LONGEST_NAME = 255
LONGEST_PATH = 500
LONGEST_ACTION, LONGEST_TARGET = 1000, 500  # of an audit row
LONGEST_CONDITION = 1000  # of one condition of a filter
LONGEST_TEXT = 100_000  # of a traceback or an output
# Line breaks, tabs and escapes (C0, DEL and C1). In a name they forge lines of a report and break URLs.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Python's own int() and Decimal() also accept 1_000, 1e1, infinity and the digits of other scripts.
WHOLE = re.compile(r"-?[0-9]{1,19}")
PLAIN_DECIMAL = re.compile(r"-?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})")
# Removing the demo deletes its queues' tasks, so nobody may enqueue others there by hand.
DEMO_QUEUES = "demo-"
SHOWN = 60
# How a cell begins that a spreadsheet computes; East Asian ones know the full-width signs too.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class Unreadable(RowlockError, ValueError):
    """This cannot be read as what was asked for."""


def storable(text: str, longest: int = LONGEST_TEXT) -> str:
    """Text for PostgreSQL: NUL and lone surrogates escaped, the middle left out beyond `longest`."""
    text = text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def storage_problem(text: str) -> str | None:
    """The reason why PostgreSQL cannot store this text, or None."""
    if "\0" in text:
        return "holds a NUL character, which PostgreSQL cannot store: remove it"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "holds half of a surrogate pair, which is not valid Unicode: encode it again"
    return None


def line_problem(text: str, longest: int) -> str | None:
    """The reason why this is not one line of at most `longest` characters, or None."""
    if len(text) > longest:
        return f"has {len(text)} characters, at most {longest} fit: shorten or hash it"
    if problem := storage_problem(text):
        return problem
    # Most texts are printable, and this check is faster.
    if not text.isprintable() and (found := CONTROL.search(text)):
        return f"holds the control character U+{ord(found[0]):04X} (a line break, a tab, an escape): remove it"
    return None


def name_problem(name: Any, longest: int = LONGEST_NAME) -> str | None:
    """The reason why this cannot name a queue, a key, a lock or a worker, or None."""
    if not isinstance(name, str):
        return f"must be text, not {type(name).__name__}: use str(…)"
    return line_problem(name, longest) if name else "must not be empty"


def name(written: str) -> str:
    """The name of a queue, a key, a lock or a worker: 1 to 255 characters without control characters."""
    if problem := name_problem(written):
        raise Unreadable(f"{shown(written)} {problem}.")
    return written


def destination(written: str) -> str:
    """The name of a queue for new or moved tasks: any but those of the demo."""
    if name(written).startswith(DEMO_QUEUES):
        raise Unreadable(
            f"{shown(written)} is a queue of the demo, with which its tasks are removed: choose another queue."
        )
    return written


def reason(written: str) -> str:
    """A person's reason in one line, stripped; it may be empty."""
    text = written.strip()
    if problem := line_problem(text, LONGEST_REASON):
        raise Unreadable(f"The reason {problem}.")
    return text


def digits(written: str) -> int | None:
    """A whole number from 0 in ASCII digits; None for anything else, and for more than 19 digits.

    >>> digits("42"), digits("1_000"), digits("٣"), digits("-1")
    (42, None, None, None)
    """
    return int(written) if WHOLE.fullmatch(written) and written[0] != "-" else None


def whole_number(written: str, lowest: int, highest: int, what: str) -> int:
    """A whole number in this range; `what` completes the sentence "… is not …"."""
    number = int(written) if WHOLE.fullmatch(written) else None
    if number is None or not lowest <= number <= highest:
        raise Unreadable(f"{shown(written)} is not {what}.")
    return number


def decimal(written: str) -> Decimal:
    """A number with or without a decimal point, like 12.50, without rounding."""
    if not PLAIN_DECIMAL.fullmatch(written):
        raise Unreadable(f"{shown(written)} is not a number; write one like 12.50.")
    return Decimal(written)


def shown(written: str) -> str:
    """The input for an error message, escaped and short."""
    return ascii(written) if len(written) <= SHOWN else f"{written[:SHOWN]!a}…"


def clipped(text: str, longest: int) -> str:
    """Text from programs for the audit: control characters escaped, cut to a length."""
    kept = CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    return kept if len(kept) <= longest else f"{kept[: longest - 1]}…"


def one_line(text: str) -> str:
    r"""Stored text that may break these rules, with everything unprintable escaped.

    >>> one_line("mail\nall is well\x1b[2J")
    'mail\\nall is well\\x1b[2J'
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def cell(text: str) -> str:
    """Stored text as one cell of a CSV file: no spreadsheet computes it.

    >>> cell("=1+1")
    "'=1+1"
    """
    return f"'{text}" if text.startswith(FORMULA) else text
