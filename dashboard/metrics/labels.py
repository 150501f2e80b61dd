"""Label values from stored text. Anyone who can enqueue chooses them, and Prometheus keeps a series for each."""

from collections.abc import Iterable
from hashlib import sha256

LONGEST = 120
MOST = 100


def label(text: str) -> str:
    """Turn text into a label: short, printable, and different for different texts.

    Two series of one name would break the scrape. Control and bidirectional characters would act on the terminal or
    page that shows the label.

    >>> label("default"), len(label("x" * 500)), label("x" * 500) == label("x" * 501)
    ('default', 120, False)
    >>> label("a\\x1b[2Jb")
    'a?[2Jb~ba68753a5de2ee16'
    """
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    if shown == text and len(text) <= LONGEST:
        return text
    return f"{shown[: LONGEST - 17]}~{sha256(text.encode()).hexdigest()[:16]}"


def kept(ranked: Iterable[str]) -> list[str]:
    return list(ranked)[:MOST]
