"""Find waits that would never end: locks that are held and waited for in a cycle."""

from collections.abc import Collection, Iterable, Mapping

from tasks.locking.leases.holder import Waiter


def find_cycle(
    wanted: str, holds: Collection[int], fences: Mapping[str, int], waiters: Iterable[Waiter]
) -> list[str] | None:
    """The names from the lock `wanted` to one that the asker holds itself; None without a cycle.

    Args:
        wanted: the lock that the asker is about to wait for.
        holds: the fences of the locks that the asker holds.
        fences: the fence of every held lock, by name.
        waiters: all current waiters; each is known by the fences that it holds.

    >>> find_cycle("b", {1}, {"a": 1, "b": 2}, [Waiter("a", "other", holds=frozenset({2}))])
    ['b', 'a']
    >>> find_cycle("a", {1}, {"a": 1}, [])
    ['a']
    """
    waiting = list(waiters)
    paths, seen = [[wanted]], {wanted}
    while paths:
        path = paths.pop()
        fence = fences.get(path[-1])
        if fence in holds:
            return path
        next_names = {waiter.name for waiter in waiting if fence in waiter.holds} - seen
        seen |= next_names
        paths += [[*path, name] for name in sorted(next_names)]
    return None


def cycle_sentence(cycle: list[str]) -> str:
    """The reason for refusing the wait; it names every lock of the cycle."""
    wanted, *between = cycle
    if not between:
        return (
            f"The lock {wanted!r} is held by this very thread or by the command that started it: waiting for it would "
            "never end. Take it once, around both places."
        )
    chain = " → ".join([wanted, *between, wanted])
    return (
        f"Waiting for the lock {wanted!r} would never end: {chain} form a cycle, in which the holder of each waits for "
        f"the next, and {between[-1]!r} is held here. Let go of it first, or take the locks in one order everywhere."
    )
