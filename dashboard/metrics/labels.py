"""Label values from stored text: whoever can enqueue chooses them, and Prometheus keeps a series for each."""

from collections.abc import Iterable
from hashlib import sha256

LONGEST = 120
MOST = 100


def label(text: str) -> str:
    """The text as a label: short, printable, and different for different texts.

    Two series of one name would spoil the scrape. Control characters and those that turn the direction of writing
    would act on the terminal or the page that shows the label.

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
    """The first MOST of these names."""
    return list(ranked)[:MOST]
