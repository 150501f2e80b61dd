"""What the benchmarks of workers share: a server, a queue, the ledger, and percentiles."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests import databases, processes
from tests.databases import QueueDatabase
from tests.ledger import Ledger
from tests.postgres import throw_away_server
from tests.processes import Worker

WORK = "tests.tasks.worker_app.tasks.work"


@dataclass
class Stage:
    database: QueueDatabase
    ledger: Ledger
    workers: list[Worker] = field(default_factory=list)

    def start(self, *arguments: object) -> Worker:
        self.workers.append(processes.start_worker(self.database.url, self.ledger.url, *arguments))
        return self.workers[-1]


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """An empty queue and its ledger on a server of their own; no worker stays."""
    with throw_away_server() as server, contextlib.ExitStack() as stack:
        url, ledger_url = databases.named(server.url, "bench"), databases.named(server.url, "ledger")
        databases.migrate(url)
        databases.create(ledger_url)
        found = Stage(QueueDatabase(url), Ledger(ledger_url))
        stack.callback(found.database.close)
        stack.callback(found.ledger.close)
        with processes.ended_at_last(found.workers, is_quiet=True):
            yield found


def percentiles(name: str, seconds: Sequence[float]) -> str:
    """One line: the median, the 99th percentile (of few values: the largest) and the maximum in milliseconds."""
    ordered = sorted(seconds)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99))
    return f"{name:<28} {len(ordered):>4}  {1000 * p50:>8.1f}  {1000 * p99:>8.1f}  {1000 * ordered[-1]:>8.1f}"


HEADING = f"{'milliseconds':<28} {'n':>4}  {'p50':>8}  {'p99':>8}  {'max':>8}"
