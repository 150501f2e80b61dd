"""Sessions and locks as one snapshot of the server shows them."""

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import models
from django.utils.functional import cached_property

from dashboard import links
from dashboard.locks.identity import Identity, identify

CLIENT = "client backend"
OUTSIDER = "outsider"
HIDDEN = "<insufficient privilege>"
NAMED, SAME_WORKER = "named lock", "same worker"


@dataclass(frozen=True)
class RowRef:
    """One row of one model's table."""

    model: type[models.Model]
    id: Any

    @property
    def table(self) -> str:
        return self.model._meta.db_table

    @property
    def url(self) -> str:
        """Link to the row's admin page, or an empty text if there is none."""
        meta = self.model._meta
        return links.page(f"admin:{meta.app_label}_{meta.model_name}_change", self.id)

    def __str__(self) -> str:
        return f"{self.model._meta.verbose_name} {self.id}"


@dataclass(frozen=True)
class Session:
    """One backend; times in seconds. `query` is redacted, and HIDDEN if this role may not see it.

    A holder that is no session here (another program's lease, a prepared transaction) is an outsider: its `pid` is 0 or
    below, and `label` describes it. `request` is the request that a web session serves, if it changes something.
    """

    pid: int
    application_name: str
    role: str | None
    client: str | None
    backend_start: datetime | None
    xact_start: datetime | None
    state: str | None
    wait_event_type: str | None
    wait_event: str | None
    query: str
    transaction_seconds: float | None
    state_seconds: float | None
    blocked_by: tuple[int, ...]
    has_written: bool = False
    backend_type: str | None = CLIENT
    label: str = ""
    request: str = ""

    @cached_property
    def identity(self) -> Identity:
        if self.label:
            return Identity(OUTSIDER, self.label)
        if self.request:
            return Identity("web", self.request)
        if self.backend_type not in (CLIENT, None):
            return Identity("other", self.backend_type or "")
        return identify(self.application_name)

    @property
    def shown(self) -> Hashable:
        """A cache key of everything that the pages show of it, except its times and its wait."""
        who = self.pid, self.identity, self.label, self.role, self.client, self.backend_start, self.backend_type
        return *who, self.state, self.query, self.blocked_by

    @property
    def key(self) -> str:
        """A stable name for its element ids."""
        return str(self.pid) if self.pid > 0 else f"x{-self.pid}"

    @property
    def shortly(self) -> str:
        """Its pid, or an outsider's label."""
        return self.label or str(self.pid)

    @property
    def is_outsider(self) -> bool:
        return self.pid <= 0

    @property
    def is_ours(self) -> bool:
        """True for the dashboard's own session, which it never signals."""
        return self.identity.kind == "web"

    @property
    def may_be_signalled(self) -> bool:
        return not self.is_outsider and not self.is_ours and self.backend_type == CLIENT

    @property
    def is_idle_in_transaction(self) -> bool:
        return (self.state or "").startswith("idle in transaction")

    @property
    def is_hidden(self) -> bool:
        """True if this role may not see what the session does (pg_read_all_stats is missing)."""
        return self.query == HIDDEN


def outsider(pid: int, label: str, seconds: float | None = None) -> Session:
    """A holder that is no session of this server; `seconds`: how long it has held the lock."""
    return Session(pid, "", None, None, None, None, None, None, None, "", seconds, None, (), False, OUTSIDER, label)


@dataclass(frozen=True)
class Lock:
    """A lock that a session holds or waits for: from `pg_locks`, a named lock, or its worker's other session.

    `row`: known if it waits for a row of a model's table; `since` and `wait_seconds`: only while it waits.
    """

    pid: int
    locktype: str
    mode: str
    granted: bool
    relation: str | None
    name: str | None
    wait_seconds: float | None
    since: datetime | None = None
    row: RowRef | None = None

    @property
    def target(self) -> str:
        """The locked object in few words: the row if known, else the table or the name."""
        return str(self.row) if self.row else " ".join(filter(None, (self.relation, self.name)))
