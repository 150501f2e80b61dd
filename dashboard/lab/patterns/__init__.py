"""The patterns of the lab: each is the project's own code path, run by several processes at once."""

from dashboard.lab.patterns import accounts, orders, queue
from dashboard.lab.patterns.pattern import Pattern

PATTERNS: dict[str, Pattern] = {
    pattern.name: pattern for module in (orders, queue, accounts) for pattern in module.PATTERNS
}

__all__ = ["PATTERNS", "Pattern"]
