"""Sessions, the locks between them, and the tree of who waits for whom."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.db import models
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from dashboard import links
from dashboard.locks.identity import Identity, identify
from tasks.support.durations import spoken

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
    `task_id` and `traceparent` are those that the statement of a handler names.
    """

    pid: int
    application_name: str
    role: str | None = None
    client: str | None = None
    backend_start: datetime | None = None
    xact_start: datetime | None = None
    state: str | None = None
    wait_event_type: str | None = None
    wait_event: str | None = None
    query: str = ""
    transaction_seconds: float | None = None
    state_seconds: float | None = None
    blocked_by: tuple[int, ...] = ()
    has_written: bool = False
    backend_type: str | None = CLIENT
    label: str = ""
    request: str = ""
    task_id: int | None = None
    traceparent: str = ""

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
        """True for the dashboard's own sessions, which are never signalled."""
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
    return Session(pid, "", transaction_seconds=seconds, backend_type=OUTSIDER, label=label)


@dataclass(frozen=True)
class Lock:
    """A lock that a session holds or waits for: from `pg_locks`, a named lock, or its worker's other session.

    `row`: known if it waits for a row of a model's table; `since` and `wait_seconds`: only while it waits.
    """

    pid: int
    locktype: str
    mode: str
    granted: bool
    relation: str | None = None
    name: str | None = None
    wait_seconds: float | None = None
    since: datetime | None = None
    row: RowRef | None = None

    @property
    def target(self) -> str:
        """The locked object in few words: the row if known, else the table or the name."""
        return str(self.row) if self.row else " ".join(filter(None, (self.relation, self.name)))


def wait_in_words(lock: Lock) -> str:
    """A session's wait in words: `waits 4 minutes for order 1042 (transactionid, ShareLock)`."""
    values = {"age": spoken(lock.wait_seconds or 0), "target": lock.target, "type": lock.locktype, "mode": lock.mode}
    if lock.locktype == SAME_WORKER:
        return _("stands still: %(target)s") % values
    if lock.locktype == NAMED:
        return _("waits %(age)s for the named lock %(target)s (%(mode)s)") % values
    if lock.target:
        return _("waits %(age)s for %(target)s (%(type)s, %(mode)s)") % values
    return _("waits %(age)s (%(type)s, %(mode)s)") % values


def wait_in_short(lock: Lock) -> str:
    """A session's wait on one line: `waits for order 1042, 4 min`."""
    if lock.locktype == SAME_WORKER or not lock.target:
        return wait_in_words(lock)
    values = {"age": spoken(lock.wait_seconds or 0), "target": lock.target}
    return _("waits for %(target)s, %(age)s") % values


LINE_CAP = 200
DEEPEST = 8  # deeper levels are not indented further


@dataclass(frozen=True)
class Node:
    """A session in the tree, with the lock that it waits for.

    `victims`: the number of sessions that wait for it, directly or indirectly.
    """

    session: Session
    waits_for: Lock | None
    blocked: tuple["Node", ...] = ()
    victims: int = 0

    def victim_pids(self) -> list[int]:
        """The pids of its victims, nearest first."""
        pids, level = [], list(self.blocked)
        while level:
            pids += [node.session.pid for node in level]
            level = [below for node in level for below in node.blocked]
        return pids


@dataclass(frozen=True)
class TreeLine:
    """One line of the tree for a page, without recursion: fifty waiters for one row are fifty levels.

    `opens`: the next line is below this one; `closes`: one entry for each level that ends after it.
    """

    node: Node
    level: int
    opens: bool = False
    closes: range = range(0)

    @property
    def indent(self) -> int:
        return min(self.level, DEEPEST)


def build_tree(sessions: Iterable[Session], locks: Iterable[Lock] = ()) -> tuple[Node, ...]:
    """Root blockers, those with the most victims first.

    Each session appears once, under the blocker that is deepest in the tree. In a queue of fifty for one row, each
    waits for all before it: a tree of every path would have 2^50 nodes. A circle is cut at its lowest pid.
    """
    by_pid = {session.pid: session for session in sessions}
    waits = {lock.pid: lock for lock in locks if not lock.granted}
    blockers = _blockers(by_pid)
    depth: dict[int, int] = {}
    below: dict[int | None, list[int]] = defaultdict(list)
    waiting = set(blockers)
    while waiting:
        ready = [pid for pid in waiting if blockers[pid] <= depth.keys()]
        if not ready:  # only circles are left, and sessions that wait for them
            blockers[next(pid for pid in sorted(waiting) if _path_back(pid, blockers))] = set()
        for pid in ready:
            parent = max(blockers[pid], key=lambda blocker: (depth[blocker], -blocker), default=None)
            depth[pid] = 0 if parent is None else depth[parent] + 1
            below[parent].append(pid)
        waiting.difference_update(ready)
    nodes: dict[int, Node] = {}
    for pid in reversed(depth):
        blocked = tuple(nodes[victim] for victim in sorted(below[pid]))
        nodes[pid] = Node(by_pid[pid], waits.get(pid), blocked, sum(1 + node.victims for node in blocked))
    roots = [nodes[pid] for pid in below[None] if nodes[pid].blocked]
    return tuple(sorted(roots, key=lambda root: (-root.victims, root.session.pid)))


def circles(sessions: Iterable[Session]) -> list[list[int]]:
    """Circles of sessions that wait for each other, each from its lowest pid: none ends by itself."""
    blockers = _blockers({session.pid: session for session in sessions})
    found: list[list[int]] = []
    for start in sorted(blockers):
        path = _path_back(start, blockers)
        if path and not any(set(path) & set(other) for other in found):
            found.append(path)
    return found


def tree_lines(roots: Iterable[Node], cap: int = LINE_CAP) -> list[TreeLine]:
    """The forest as lines, each node before those below it; at most `cap` lines."""
    found = list(islice(_walk(roots), cap))
    followers = [level for _, level in found[1:]] + [1]
    return [
        TreeLine(node, level, opens=following > level, closes=range(level - following))
        for (node, level), following in zip(found, followers, strict=False)  # one more if there is no line at all
    ]


def find_node(roots: Iterable[Node], pid: int) -> Node | None:
    return next((node for node, _ in _walk(roots) if node.session.pid == pid), None)


def _walk(roots: Iterable[Node]) -> Iterator[tuple[Node, int]]:
    stack = [(root, 1) for root in roots][::-1]
    while stack:
        node, level = stack.pop()
        yield node, level
        stack.extend((below, level + 1) for below in reversed(node.blocked))


def _blockers(by_pid: Mapping[int, Session]) -> dict[int, set[int]]:
    return {
        pid: {blocker for blocker in session.blocked_by if blocker in by_pid and blocker != pid}
        for pid, session in by_pid.items()
    }


def _path_back(start: int, blockers: Mapping[int, set[int]]) -> list[int]:
    """A shortest path from `start` through blockers back to it, using only pids >= `start`."""
    paths, seen = deque([[start]]), {start}
    while paths:
        path = paths.popleft()
        for pid in sorted(blockers[path[-1]]):
            if pid == start:
                return path
            if pid > start and pid not in seen:
                seen.add(pid)
                paths.append([*path, pid])
    return []
