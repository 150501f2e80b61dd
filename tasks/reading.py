"""Read what people and other programs write: reasons, names, whole numbers and sums.

Pages, commands and the doors of Python all read here, so that each limit stands once; migration 0018 holds the same as
CHECKs for whoever writes SQL. A reader gives the value, or raises Unreadable, which says what is wrong.
"""

import re
from decimal import Decimal
from typing import Any

from tasks.exceptions import RowlockError

# All in characters, and all of them in the CHECKs too.
LONGEST_REASON = 1000
LONGEST_NAME = 255
LONGEST_PATH = 500
LONGEST_ACTION, LONGEST_TARGET = 1000, 500  # of a line of the audit
LONGEST_CONDITION = 1000  # of one condition of a filter
# Line breaks, tabs and escapes (C0, DEL and C1): in a name they forge lines of a report and break addresses of pages.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Python's own int() and Decimal() also read 1_000, 1e1, infinity and the digits of other scripts.
WHOLE = re.compile(r"-?[0-9]{1,19}")
PLAIN_DECIMAL = re.compile(r"-?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})")
# Removing the demo deletes what is in its queues, so nothing else gets in there by hand.
DEMO_QUEUES = "demo-"
SHOWN = 60


class Unreadable(RowlockError, ValueError):
    """This cannot be read as what was asked for."""


def storage_problem(text: str) -> str | None:
    """Why PostgreSQL cannot store this text at all, or None."""
    if "\0" in text:
        return "holds a NUL character, which PostgreSQL cannot store: remove it"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "holds half of a surrogate pair, which is not valid Unicode: encode it again"
    return None


def line_problem(text: str, longest: int) -> str | None:
    """Why this is not one line of text of at most so many characters, or None."""
    if len(text) > longest:
        return f"has {len(text)} characters, at most {longest} fit: shorten or hash it"
    if problem := storage_problem(text):
        return problem
    # Most texts are printable, which is quicker to see.
    if not text.isprintable() and (found := CONTROL.search(text)):
        return f"holds the control character U+{ord(found[0]):04X} (a line break, a tab, an escape): remove it"
    return None


def name_problem(name: Any, longest: int = LONGEST_NAME) -> str | None:
    """Why this cannot name a queue, a key, a lock or a worker, or None."""
    if not isinstance(name, str):
        return f"must be text, not {type(name).__name__}: use str(…)"
    return line_problem(name, longest) if name else "must not be empty"


def name(written: str) -> str:
    """The name of a queue, a key, a lock or a worker: 1 to 255 characters, none of them a control character."""
    if problem := name_problem(written):
        raise Unreadable(f"{shown(written)} {problem}.")
    return written


def destination(written: str) -> str:
    """The name of a queue into which a person puts a task: any but those of the demo."""
    if name(written).startswith(DEMO_QUEUES):
        raise Unreadable(
            f"{shown(written)} is a queue of the demo, with which its tasks are removed: choose another queue."
        )
    return written


def reason(written: str) -> str:
    """A person's reason in one line, without blanks around it; it may be empty."""
    text = written.strip()
    if problem := line_problem(text, LONGEST_REASON):
        raise Unreadable(f"The reason {problem}.")
    return text


def digits(written: str) -> int | None:
    """The whole number from 0 that these ASCII digits say; None for anything else, and for more than 19 digits.

    >>> digits("42"), digits("1_000"), digits("٣"), digits("-1")
    (42, None, None, None)
    """
    return int(written) if WHOLE.fullmatch(written) and written[0] != "-" else None


def whole_number(written: str, lowest: int, highest: int, what: str) -> int:
    """A whole number between these; `what` completes the sentence "… is not …"."""
    number = int(written) if WHOLE.fullmatch(written) else None
    if number is None or not lowest <= number <= highest:
        raise Unreadable(f"{shown(written)} is not {what}.")
    return number


def decimal(written: str) -> Decimal:
    """A number with or without a decimal point, like 12.50, exactly as it is written."""
    if not PLAIN_DECIMAL.fullmatch(written):
        raise Unreadable(f"{shown(written)} is not a number; write one like 12.50.")
    return Decimal(written)


def shown(written: str) -> str:
    """What was written, harmless and short enough for a message."""
    return ascii(written) if len(written) <= SHOWN else f"{written[:SHOWN]!a}…"


def clipped(text: str, longest: int) -> str:
    """What programs put together for the audit, as it can be kept: control characters escaped, cut to a length."""
    kept = CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    return kept if len(kept) <= longest else f"{kept[: longest - 1]}…"


def one_line(text: str) -> str:
    r"""Text that was stored before these rules, or by others, with everything unprintable escaped.

    >>> one_line("mail\nall is well\x1b[2J")
    'mail\\nall is well\\x1b[2J'
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
