"""How often a token may ask, and how often an address may be wrong, counted in each web process."""

import math
import threading
import time
from collections import OrderedDict

PERIOD_SECONDS = 60.0
MOST_REQUESTS = 1200  # of a token in a period
MOST_FAILURES = 20  # of an address in a period
MOST_COUNTED = 10_000  # the oldest are forgotten


class TooOften(Exception):
    """`seconds`: after which it may ask again."""

    def __init__(self, sentence: str, seconds: int) -> None:
        super().__init__(sentence)
        self.seconds = seconds


class Counter:
    """Counts by name in periods that begin with the first one counted."""

    def __init__(self, most: int, sentence: str) -> None:
        self.most, self.sentence = most, sentence
        self._found: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, name: str) -> None:
        """Raise TooOften if as many were counted as may be."""
        with self._lock:
            began, number = self._found.get(name, (0.0, 0))
        left = began + PERIOD_SECONDS - time.monotonic()
        if number >= self.most and left > 0:
            raise TooOften(self.sentence, math.ceil(left))

    def count(self, name: str) -> None:
        with self._lock:
            now = time.monotonic()
            began, number = self._found.pop(name, (now, 0))
            self._found[name] = (began, number + 1) if now - began < PERIOD_SECONDS else (now, 1)
            if len(self._found) > MOST_COUNTED:
                self._found.popitem(last=False)

    def forget(self) -> None:
        with self._lock:
            self._found.clear()


requests = Counter(MOST_REQUESTS, f"This token may ask {MOST_REQUESTS} times a minute: wait.")
failures = Counter(MOST_FAILURES, "Too many wrong tokens came from this address: wait.")
