"""How often a token may ask, and an address be wrong: counted in the database, which all processes share."""

from math import ceil

from django.db import connection

from tasks.operations.prune import History
from tasks.support.database import execute, fetch

PERIOD_SECONDS = 60
MOST_REQUESTS = 1200  # of a token in a period
MOST_FAILURES = 20  # of an address in a period

# A period begins with the first one counted. The table is unlogged: a count waits for no disk, and after a crash of the
# server it begins anew.
COUNT = """
INSERT INTO dashboard_apicount AS known (name, began_at, number)
VALUES (%(name)s::text, statement_timestamp(), 1)
ON CONFLICT (name) DO UPDATE SET
    number = CASE WHEN known.began_at > statement_timestamp() - %(seconds)s::int * interval '1 second'
                  THEN known.number + 1 ELSE 1 END,
    began_at = CASE WHEN known.began_at > statement_timestamp() - %(seconds)s::int * interval '1 second'
                    THEN known.began_at ELSE statement_timestamp() END
RETURNING number, %(seconds)s::int - extract(epoch FROM statement_timestamp() - began_at)::float8 AS left_seconds
"""
FORGET = "DELETE FROM dashboard_apicount WHERE starts_with(name, %(kind)s::text)"
PRUNE = """
WITH doomed AS MATERIALIZED (
    SELECT name FROM dashboard_apicount WHERE began_at < statement_timestamp() - %(age)s::interval
    ORDER BY name LIMIT %(window)s::int FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM dashboard_apicount USING doomed WHERE dashboard_apicount.name = doomed.name
    RETURNING dashboard_apicount.name
)
SELECT 0 AS last_id, count(*) AS deleted, count(*) = %(window)s::int AS is_old FROM deleted
"""
HISTORY = (History("api_counts", "dashboard_apicount", PRUNE),)


class TooOften(Exception):
    """`seconds`: after which it may ask again."""

    def __init__(self, sentence: str, seconds: int) -> None:
        super().__init__(sentence)
        self.seconds = seconds


class Counter:
    """Counts what is of one kind, by name; `most` of a name may be in a period."""

    def __init__(self, kind: str, most: int, sentence: str) -> None:
        self.kind, self.most, self.sentence = f"{kind}:", most, sentence

    def count(self, name: object) -> None:
        """Raise TooOften if there were as many before this one as may be."""
        params = {"name": f"{self.kind}{name}", "seconds": PERIOD_SECONDS}
        [found] = fetch(connection, COUNT, params)
        if found["number"] > self.most:
            raise TooOften(self.sentence, max(1, ceil(found["left_seconds"])))

    def forget(self) -> None:
        """Let everybody begin anew."""
        execute(connection, FORGET, {"kind": self.kind})


requests = Counter("token", MOST_REQUESTS, f"This token may ask {MOST_REQUESTS} times a minute: wait.")
failures = Counter("address", MOST_FAILURES, "Too many wrong tokens came from this address: wait.")
