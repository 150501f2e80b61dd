"""Describe a wait in words, for pages and commands."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from django.utils.translation import gettext as _

from dashboard.locks.sessions import NAMED, SAME_WORKER, Lock, Session
from tasks.support.durations import spoken


def told_wait(lock: Lock) -> str:
    """A session's wait in words: `waits 4 minutes for order 1042 (transactionid, ShareLock)`."""
    told = {"age": spoken(lock.wait_seconds or 0), "target": lock.target, "type": lock.locktype, "mode": lock.mode}
    if lock.locktype == SAME_WORKER:
        return _("stands still: %(target)s") % told
    if lock.locktype == NAMED:
        return _("waits %(age)s for the named lock %(target)s (%(mode)s)") % told
    if lock.target:
        return _("waits %(age)s for %(target)s (%(type)s, %(mode)s)") % told
    return _("waits %(age)s (%(type)s, %(mode)s)") % told


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
class Line:
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
    parents = _parents(_blockers(by_pid))
    below: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        below.setdefault(parent, []).append(pid)
    nodes: dict[int, Node] = {}
    for pid in _leaves_first(below):
        blocked = tuple(nodes[victim] for victim in sorted(below.get(pid, ())))
        victims = sum(1 + node.victims for node in blocked)
        nodes[pid] = Node(by_pid[pid], waits.get(pid), blocked, victims)
    roots = [nodes[pid] for pid in below if pid not in parents]
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


def lines(roots: Iterable[Node], cap: int = LINE_CAP) -> list[Line]:
    """The forest as lines, each node before those below it; at most `cap` lines."""
    found = list(islice(_walk(roots), cap))
    followers = [level for _, level in found[1:]] + [1]
    return [
        Line(node, level, opens=following > level, closes=range(level - following))
        for (node, level), following in zip(found, followers, strict=False)  # one more if there is no line at all
    ]


def find(roots: Iterable[Node], pid: int) -> Node | None:
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
    level, seen = [[start]], {start}
    while level:
        further = []
        for path in level:
            for pid in sorted(blockers[path[-1]]):
                if pid == start:
                    return path
                if pid > start and pid not in seen:
                    seen.add(pid)
                    further.append([*path, pid])
        level = further
    return []


def _parents(blockers: Mapping[int, set[int]]) -> dict[int, int]:
    """For each waiting session, the blocker under which it is shown."""
    depth = {pid: 0 for pid, behind in blockers.items() if not behind}
    parents: dict[int, int] = {}
    waiting = {pid for pid, behind in blockers.items() if behind}
    while waiting:
        ready = [pid for pid in waiting if blockers[pid] <= depth.keys()]
        if not ready:  # a circle
            top = _in_circle(waiting, blockers)
            depth[top] = 0
            waiting.discard(top)
            continue
        for pid in ready:
            parents[pid] = max(blockers[pid], key=lambda blocker: (depth[blocker], -blocker))
            depth[pid] = depth[parents[pid]] + 1
        waiting.difference_update(ready)
    return parents


def _in_circle(waiting: set[int], blockers: Mapping[int, set[int]]) -> int:
    """The lowest pid that waits for itself indirectly; the tree is cut there, and the rest stays below it."""
    return next((pid for pid in sorted(waiting) if _path_back(pid, blockers)), min(waiting))


def _leaves_first(below: Mapping[int, list[int]]) -> list[int]:
    """Every session of the forest, each after the sessions below it."""
    roots = below.keys() - {pid for victims in below.values() for pid in victims}
    order, stack = [], sorted(roots)
    while stack:
        pid = stack.pop()
        order.append(pid)
        stack.extend(below.get(pid, ()))
    return order[::-1]
