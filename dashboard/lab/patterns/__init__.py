"""The lab's patterns: each is the project's own code path, run by several processes at once."""

from collections.abc import Iterator

from dashboard.lab.patterns import queue
from dashboard.lab.patterns.pattern import Catalogue, Pattern
from tasks.support.installed import is_ours


def built_in() -> Iterator[Pattern]:
    """The patterns over the queue; where `orders` is installed, those over orders too."""
    if not is_ours("orders"):
        yield from queue.PATTERNS
        return
    from dashboard.lab.patterns import accounts, orders

    yield from (*orders.PATTERNS, *queue.PATTERNS, *accounts.PATTERNS)


BUILT_IN = tuple(built_in())
PATTERNS = Catalogue(BUILT_IN)
