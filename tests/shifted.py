"""A database whose clock a test sets, and lets run as fast as it likes.

A schema before `pg_catalog` in the search path hides PostgreSQL's own clock from every unqualified call, so that the
product's statements run as they are. Defaults of columns keep the true clock.
"""

from dataclasses import dataclass
from datetime import datetime

from tests.databases import QueueDatabase, name_of

HIDE_THE_CLOCK = """
CREATE SCHEMA shifted;
CREATE TABLE shifted.clock (base timestamptz NOT NULL, since timestamptz NOT NULL, pace float8 NOT NULL);
INSERT INTO shifted.clock VALUES (pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp(), 1);
CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT base + (pg_catalog.clock_timestamp() - since) * pace FROM shifted.clock $$;
CREATE FUNCTION shifted.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT base + (pg_catalog.statement_timestamp() - since) * pace FROM shifted.clock $$;
"""
SET = "UPDATE shifted.clock SET base = %s, since = pg_catalog.clock_timestamp(), pace = %s"
STEP = "UPDATE shifted.clock SET base = base + %s"


@dataclass
class Clock:
    """The clock of one database, for all its sessions to come."""

    database: QueueDatabase

    def __post_init__(self) -> None:
        self.database.rows(HIDE_THE_CLOCK)
        path = "public, shifted, pg_catalog"
        self.database.rows(f'ALTER DATABASE "{name_of(self.database.url)}" SET search_path = {path}')
        self.database.close()

    def set(self, at: datetime | str, *, pace: float = 0.0) -> None:
        """From now on it shows this time; `pace`: so many seconds in one, 0: it stands still."""
        self.database.rows(SET, at, pace)

    def step(self, by: str) -> None:
        """Set it forward, or back."""
        self.database.rows(STEP, by)

    def now(self) -> datetime:
        return self.database.value("SELECT shifted.statement_timestamp()")
