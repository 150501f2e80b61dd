"""The lab's patterns: each is the project's own code path, run by several processes at once."""

from dashboard.lab.patterns import accounts, orders, queue, slots
from dashboard.lab.patterns.pattern import Catalogue

BUILT_IN = (*orders.PATTERNS, *queue.PATTERNS, *slots.PATTERNS, *accounts.PATTERNS)
PATTERNS = Catalogue(BUILT_IN)
