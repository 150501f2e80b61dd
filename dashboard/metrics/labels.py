"""Label values from stored text: whoever can enqueue chooses them, and Prometheus keeps a series for each."""

from collections.abc import Iterable
from hashlib import sha256

LONGEST = 120
MOST = 100


def label(text: str) -> str:
    """The text as a label: short, and different for different texts; two series of one name would spoil the scrape.

    >>> label("default"), len(label("x" * 500)), label("x" * 500) == label("x" * 501)
    ('default', 120, False)
    """
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 17]}~{sha256(text.encode()).hexdigest()[:16]}"


def kept(ranked: Iterable[str]) -> list[str]:
    """The first MOST of these names."""
    return list(ranked)[:MOST]
