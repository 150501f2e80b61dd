"""Conclusions from runs side by side, and the cells of a table of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.lab.measure import Result
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.worker import Plan
from dashboard.numbers import decimal

HEADINGS = (
    "pattern", "items/s", "duplicates", "lost updates", "lost work", "lost races", "inversions", "wait p50", "wait p95",
    "queries/item", "verdict",
)  # fmt: skip
SLOT_HEADINGS = ("most at once", "leaked slots", "all in use again")


def headings(results: Iterable[Result]) -> list[str]:
    """HEADINGS, and before the verdict those of slots if one of these runs kept a limit."""
    return [*HEADINGS[:-1], *(SLOT_HEADINGS if any(result.slots for result in results) else ()), HEADINGS[-1]]


def cells(label: str, result: Result, *, fits: bool = False, has_slots: bool = False) -> list[str]:
    """The numbers under `headings`; `fits`: it was the fastest clean run under this load."""
    verdict = "fits this load" if fits else "clean" if result.is_clean else "UNSAFE"
    return [
        label,
        f"{result.items_per_second:,.0f}",
        str(result.duplicates),
        str(result.lost_updates),
        str(result.lost_work),
        str(result.lost_races),
        str(result.order_inversions),
        f"{result.wait_ms_p50:.1f} ms",
        f"{result.wait_ms_p95:.1f} ms",
        f"{result.queries_per_item:.1f}",
        *(slot_cells(result) if has_slots else ()),
        f"ended: {result.stopped}" if result.stopped else verdict,
    ]


def slot_cells(result: Result) -> list[str]:
    """The numbers under SLOT_HEADINGS; dashes for a pattern that keeps no limit."""
    if not result.slots:
        return ["-"] * len(SLOT_HEADINGS)
    again = "never" if result.refill_ms is None else f"{result.refill_ms} ms" if result.faults else "-"
    return [f"{result.most_at_once} of {result.slots}", str(result.leaked_slots), again]


CLOSE = 1.25  # two runs on one machine differ by this factor for no reason
MOSTLY_WAITING = 0.5  # of the workers' time: then waiting explains a slow pattern
MANY_RACES = 1.0  # lost for each item: then they explain it
MANY_RETRIES = 0.5  # for each item: then wasted work explains it
HIGH_CONTENTION, LOW_CONTENTION = 0.5, 0.1  # retries of the optimistic pattern for each operation
WORK_DOMINATES = 0.8  # of the workers' time was the items' own work: no lock could be much faster
QUEUE_FACTOR = 2.0  # batched claims do this many times the items of the best lock per item
LOCK_COSTS = 0.3  # of the workers' time was waiting for locks held during the work

CLAIMS = ("skip_locked_claim", "optimistic_claim")
LOCK_PER_ITEM = ("double_checked", "double_checked_nowait", "cache_lock", "advisory_lock", "skip_locked_held")


@dataclass(frozen=True)
class Case:
    """One run: its plan and its result."""

    plan: Plan
    result: Result

    @property
    def name(self) -> str:
        return self.result.pattern

    @property
    def speed(self) -> float:
        return self.result.items_per_second

    @property
    def subject(self) -> str:
        """Its rows; empty if the pattern no longer exists."""
        pattern = PATTERNS.get(self.name)
        return pattern.subject if pattern else ""

    @property
    def work_share(self) -> float:
        """The share of the workers' time that the items' own work took, 0 to 1."""
        spent = self.result.seconds * self.plan.workers
        return self.result.processed * (self.plan.work_ms + self.plan.remote_ms) / 1000 / spent if spent else 0.0

    def per_item(self, number: int) -> float:
        return number / max(1, self.result.processed)


def load_of(plan: Plan, without: str = "") -> str:
    """The load in few words, such as "8 workers, 200 items, 5 ms of work, 3 kills"; zeros are left out."""
    texts = {
        "workers": ngettext("%(n)d worker", "%(n)d workers", plan.workers),
        "items": ngettext("%(n)d item", "%(n)d items", plan.items),
        "work_ms": _("%(n)d ms of work"),
        "remote_ms": _("a call of %(n)d ms"),
        "outside_lockers": ngettext("%(n)d outside locker", "%(n)d outside lockers", plan.outside_lockers),
        "kill": ngettext("%(n)d kill", "%(n)d kills", plan.kill),
        "cut": ngettext("%(n)d session cut", "%(n)d sessions cut", plan.cut),
    }
    numbers = {name: getattr(plan, name) for name in texts if name != without}
    return ", ".join(texts[name] % {"n": n} for name, n in numbers.items() if n or name == "work_ms")


def drawn(cases: Sequence[Case]) -> list[str]:
    broken = [sentence for case in cases if not case.result.is_clean for sentence in broken_in(case)]
    clean = sorted((case for case in cases if case.result.is_clean), key=lambda case: -case.speed)
    if cases and not clean:
        return [*broken, _("No pattern of this comparison was clean under this load.")]
    if any(load_of(case.plan) != load_of(cases[0].plan) for case in cases):
        return [*broken, _("These runs had different loads: their numbers can be read, but not ranked.")]
    return [*broken, *(sentence for rule in RULES for sentence in rule(clean))]


def broken_in(case: Case) -> Iterator[str]:
    """The numbers by which a run was not clean, and the result with the guard that it lacks."""
    result = case.result
    repeated = result.duplicates if result.duplicates > result.may_repeat else 0
    counted = (
        (ngettext("repeated an item", "repeated items %(n)d times", repeated), repeated),
        (ngettext("lost %(n)d update", "lost %(n)d updates", result.lost_updates), result.lost_updates),
        (ngettext("lost %(n)d result", "lost %(n)d results", result.lost_work), result.lost_work),
        (ngettext("left %(n)d item", "left %(n)d items", result.unprocessed), result.unprocessed),
        (ngettext("leaked %(n)d slot", "leaked %(n)d slots", result.leaked_slots), result.leaked_slots),
        (_("ran %(n)d more at once than its limit"), result.over_the_limit),
    )
    found = [text % {"n": number} for text, number in counted if number]
    if result.stopped:
        found.append(_("was ended (%(why)s)") % {"why": result.stopped})
    yield f"{case.name} " + _(" and ").join(found) + "."
    if result.guarded and case.name in PATTERNS:
        words = {"pattern": case.name, "guard": PATTERNS[case.name].guard, "n": result.guarded["duplicates"]}
        yield _("With %(guard)s the same load through %(pattern)s repeated items %(n)d times.") % words


def by_subject(cases: Iterable[Case]) -> dict[str, list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.subject, []).append(case)
    return groups


def fitting(clean: Sequence[Case]) -> list[Case]:
    """The fastest case of all, and of each kind of rows, among at least two."""
    groups = [clean, *by_subject(clean).values()]
    return [max(group, key=lambda case: case.speed) for group in groups if len(group) > 1]


def fastest(clean: Sequence[Case]) -> Iterator[str]:
    """For each kind of rows the fastest clean pattern, those equal within the noise, and why the slowest is slow."""
    names = {"orders": _("orders"), "tasks": _("tasks"), "accounts": _("accounts"), "slots": _("slots")}
    for subject, (best, *others) in by_subject(clean).items():
        words = {"subject": names.get(subject, subject), "pattern": best.name, "speed": decimal(best.speed)}
        if not others:
            yield _("For %(subject)s, %(pattern)s was clean: %(speed)s items a second.") % words
            continue
        yield _("For %(subject)s, %(pattern)s was the fastest clean pattern: %(speed)s items a second.") % words
        if equal := [case.name for case in others if case.speed * CLOSE >= best.speed]:
            words["others"] = ", ".join(equal)
            yield _("Within the noise of %(pattern)s: %(others)s.") % words
        slow = others[-1]
        if slow.speed * CLOSE < best.speed:
            words = {"pattern": slow.name, "times": decimal(best.speed / max(slow.speed, 0.1), 1), "best": best.name}
            words["why"] = why_slow(slow, best)
            yield _("%(pattern)s took %(times)s times as long as %(best)s: %(why)s.") % words


def why_slow(slow: Case, best: Case) -> str:
    """The dominant reason: waits, wasted work, lost races or statements."""
    result = slow.result
    retries, races = slow.per_item(result.retries), slow.per_item(result.lost_races)
    if result.waited_share >= MOSTLY_WAITING:
        return _("%(share)d %% of its workers' time was waiting") % {"share": 100 * result.waited_share}
    if retries >= MANY_RETRIES:
        return _("%(number)s failed tries per item") % {"number": decimal(retries, 1)}
    if races >= MANY_RACES:
        return _("%(number)s lost races per item") % {"number": decimal(races, 1)}
    if result.queries_per_item >= CLOSE * best.result.queries_per_item:
        words = {"number": decimal(result.queries_per_item, 1), "best": decimal(best.result.queries_per_item, 1)}
        return _("%(number)s statements per item instead of %(best)s") % words
    return _("the numbers do not show why")


def work_dominates(clean: Sequence[Case]) -> Iterator[str]:
    """If the items' own work takes the time, the choice is about safety, not speed."""
    if clean and clean[0].work_share >= WORK_DOMINATES:
        words = {"share": 100 * min(1.0, clean[0].work_share), "pattern": clean[0].name}
        text = _(
            "With %(pattern)s, %(share)d %% of the workers' time was the items' own work: no lock could be much "
            "faster here, so choose by what must not happen."
        )
        yield text % words


def contention(clean: Sequence[Case]) -> Iterator[str]:
    """Recommend optimistic or pessimistic updates, by how often writers collide."""
    optimist = first(clean, ("account_optimistic",))
    if optimist is None:
        return
    tries = optimist.per_item(optimist.result.retries)
    words = {"tries": decimal(1 + tries, 1), "hundredths": 100 * tries}
    if tries >= HIGH_CONTENTION:
        text = _(
            "Contention is high: account_optimistic did the work of each operation %(tries)s times on average; "
            "waiting in line (account_pessimistic) does it once."
        )
        yield text % words
    elif tries <= LOW_CONTENTION:
        text = _(
            "Contention is low: account_optimistic repeated %(hundredths)d of 100 operations, so no lock need be "
            "held during the work."
        )
        yield text % words


def queue_instead(clean: Sequence[Case]) -> Iterator[str]:
    """Compare batched claims with the best lock per item, at this work time."""
    claim, locker = first(clean, CLAIMS), first(clean, LOCK_PER_ITEM)
    if claim is None or locker is None:
        return
    times = claim.speed / max(locker.speed, 0.1)
    words = {"claim": claim.name, "locker": locker.name, "times": decimal(times, 1), "work": claim.plan.work_ms}
    if times >= QUEUE_FACTOR:
        text = _(
            "A queue would serve better than locking at %(work)d ms of work for each item: %(claim)s did "
            "%(times)s times as many items a second as %(locker)s, the fastest with a lock for each item."
        )
        yield text % words
    elif times * CLOSE <= 1:
        text = _(
            "A queue would not be faster at %(work)d ms of work for each item: %(locker)s, with a lock for each "
            "item, was ahead of %(claim)s."
        )
        yield text % words


def locks_held(clean: Sequence[Case]) -> Iterator[str]:
    """Report waits for a lock held during the work, if a claim waits far less."""
    claim = first(clean, CLAIMS)
    waiting = [case for case in clean if case.name in LOCK_PER_ITEM and case.result.waited_share >= LOCK_COSTS]
    if claim is None or not waiting or claim.result.waited_share * 2 > waiting[0].result.waited_share:
        return
    worst = max(waiting, key=lambda case: case.result.waited_share)
    words = {"pattern": worst.name, "share": 100 * worst.result.waited_share, "claim": claim.name}
    words["less"] = 100 * claim.result.waited_share
    text = _(
        "%(pattern)s holds its lock during the work, and its workers spent %(share)d %% of their time waiting; "
        "%(claim)s ends its transaction before the work: %(less)d %%."
    )
    yield text % words


def wasteful(clean: Sequence[Case]) -> Iterator[str]:
    """Report side effects that retries have repeated."""
    for case in clean:
        if times := case.result.repeated_calls:
            sentence = ngettext(
                "%(pattern)s repeated the slow call %(n)d time: that must do no harm when it is repeated.",
                "%(pattern)s repeated the slow call %(n)d times: that must do no harm when it is repeated.",
                times,
            )
            yield sentence % {"pattern": case.name, "n": times}


def first(clean: Sequence[Case], names: Sequence[str]) -> Case | None:
    return next((case for case in clean if case.name in names), None)


Rule = Callable[[Sequence[Case]], Iterator[str]]
RULES: tuple[Rule, ...] = (fastest, queue_instead, locks_held, contention, work_dominates, wasteful)
