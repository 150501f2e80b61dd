"""Processes that enqueue one unique key again and again; some roll back, and some are killed.

`python -m tests.races.enqueuers PROCESSES TIMES KILLS WHILE ON_DUPLICATE` writes one JSON object: the ids that
committed enqueues gave back, their number, and how many processes failed or were killed.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import django
from django.db import connection, transaction

from tests.forks import started

KEY = "page 7"
FUNCTION = """
SELECT rowlock_enqueue('tests.tasks.handlers.echo', '[0]', unique_key => %s, unique_while => %s, on_duplicate => %s)
"""


class Enqueuer:
    """One process: every enqueue has a transaction of its own, and a line in the file if that was committed."""

    def __init__(self, place: int, unique_while: str, on_duplicate: str) -> None:
        from tests.tasks import handlers

        self.chance = random.Random(place)
        self.options = [unique_while, on_duplicate]
        self.task = handlers.echo.using(unique_key=KEY, unique_while=unique_while, on_duplicate=on_duplicate)

    def one(self) -> int:
        return int(self.task.enqueue(os.getpid()).id)

    def many(self) -> int:
        [id, *others] = self.task.enqueue_many(((number,), {}) for number in range(5))
        assert set(others) == {id}
        return id

    def sql(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(FUNCTION, [KEY, *self.options])
            return cursor.fetchone()[0]

    def enqueue(self, times: int, notes: Path) -> None:
        with notes.open("w") as file:
            for _ in range(times):
                is_undone = self.chance.random() < 0.3
                with transaction.atomic():
                    id = self.chance.choice([self.one, self.many, self.sql])()
                    time.sleep(self.chance.random() / 1000)  # the key is held that long
                    transaction.set_rollback(is_undone)
                if not is_undone:
                    print(id, file=file, flush=True)


def main(processes: int, times: int, kills: int, unique_while: str, on_duplicate: str) -> None:
    with tempfile.TemporaryDirectory(prefix="enqueuers-") as folder:

        def body(place: int) -> None:
            Enqueuer(place, unique_while, on_duplicate).enqueue(times, Path(folder) / str(place))

        pids = [started(body, place) for place in range(processes)]
        for pid in random.sample(pids, kills):
            time.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
        ends = Counter(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)
        # The last line of a killed process may be cut.
        notes = [int(line) for file in Path(folder).iterdir() for line in file.read_text().split("\n")[:-1]]
    killed = ends.pop(-signal.SIGKILL, 0)
    failed = sum(number for status, number in ends.items() if status)
    print(json.dumps({"ids": sorted(set(notes)), "noted": len(notes), "killed": killed, "failed": failed}))


if __name__ == "__main__":
    django.setup()
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
