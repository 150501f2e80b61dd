"""Conclusions from runs side by side, and the runs as a table for a terminal."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.lab.measure import Result
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.worker import Plan
from dashboard.numbers import decimal
from tasks.commands.output import table as aligned

HEADINGS = (
    "PATTERN",
    "ITEMS/S",
    "DUPLICATES",
    "LOST UPDATES",
    "LOST WORK",
    "LOST RACES",
    "INVERSIONS",
    "WAIT P50",
    "WAIT P95",
    "QUERIES/ITEM",
    "",
)


def table(results: Sequence[Result], varied: Sequence[str] = ()) -> str:
    """The runs as a table for a terminal; `varied`: the varied number of each, as in "workers=4"."""
    labels = [
        f"{result.pattern} {what}".strip() for result, what in zip(results, varied or [""] * len(results), strict=True)
    ]
    return aligned(HEADINGS, [_row(label, result) for label, result in zip(labels, results, strict=True)])


def _row(label: str, result: Result) -> list[str]:
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
        "" if result.is_clean else "UNSAFE" if not result.stopped else result.stopped,
    ]


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
# The fields that do not belong to the load.
OF_NO_LOAD = ("pattern", "seed", "seconds", "alongside")


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
    def load(self) -> dict[str, object]:
        return {name: value for name, value in self.plan.as_dict().items() if name not in OF_NO_LOAD}

    @property
    def work_share(self) -> float:
        """The share of the workers' time that the items' own work took, 0 to 1."""
        spent = self.result.seconds * self.plan.workers
        return self.result.processed * (self.plan.work_ms + self.plan.remote_ms) / 1000 / spent if spent else 0.0

    def per_item(self, number: int) -> float:
        return number / max(1, self.result.processed)


def drawn(cases: Sequence[Case]) -> list[str]:
    told = [sentence for case in cases if not case.result.is_clean for sentence in told_broken(case)]
    clean = sorted((case for case in cases if case.result.is_clean), key=lambda case: -case.speed)
    if cases and not clean:
        return [*told, _("No pattern of this comparison was clean under this load.")]
    if any(case.load != cases[0].load for case in cases):
        return [*told, _("These runs had different loads: their numbers can be read, but not ranked.")]
    return [*told, *(sentence for rule in RULES for sentence in rule(clean))]


def told_broken(case: Case) -> Iterator[str]:
    """The numbers by which a run was not clean, and the result with the guard that it lacks."""
    result, found = case.result, []
    if result.duplicates > result.may_repeat:
        found.append(ngettext("did an item again", "did items again %(n)d times", result.duplicates))
        found[-1] %= {"n": result.duplicates}
    if result.lost_updates:
        found.append(ngettext("lost %(n)d update", "lost %(n)d updates", result.lost_updates))
        found[-1] %= {"n": result.lost_updates}
    if result.lost_work:
        found.append(ngettext("lost %(n)d result", "lost %(n)d results", result.lost_work) % {"n": result.lost_work})
    if result.unprocessed:
        found.append(ngettext("left %(n)d item", "left %(n)d items", result.unprocessed) % {"n": result.unprocessed})
    if result.stopped:
        found.append(_("was ended (%(why)s)") % {"why": result.stopped})
    yield f"{case.name} " + _(" and ").join(found) + "."
    if result.guarded and case.name in PATTERNS:
        told = {"pattern": case.name, "guard": PATTERNS[case.name].guard, "n": result.guarded["duplicates"]}
        yield _("With %(guard)s the same load through %(pattern)s did items again %(n)d times.") % told


def fastest(clean: Sequence[Case]) -> Iterator[str]:
    """For each kind of rows the fastest clean pattern, those equal within the noise, and why the slowest is slow."""
    by_subject: dict[str, list[Case]] = {}
    for case in clean:
        by_subject.setdefault(case.subject, []).append(case)
    for subject, (best, *others) in by_subject.items():
        told = {"subject": words(subject), "pattern": best.name, "speed": decimal(best.speed)}
        if not others:
            yield _("For %(subject)s, %(pattern)s was clean: %(speed)s items a second.") % told
            continue
        yield _("For %(subject)s, %(pattern)s was the fastest clean pattern: %(speed)s items a second.") % told
        equal = [case.name for case in others if case.speed * CLOSE >= best.speed]
        if equal:
            yield _("Within the noise of %(pattern)s: %(others)s.") % {**told, "others": ", ".join(equal)}
        if others[-1].speed * CLOSE < best.speed:
            yield told_slow(others[-1], best)


def told_slow(slow: Case, best: Case) -> str:
    """How much slower it was, and the main reason."""
    told = {"pattern": slow.name, "times": decimal(best.speed / max(slow.speed, 0.1), 1), "best": best.name}
    told["why"] = why_slow(slow, best)
    return _("%(pattern)s took %(times)s times as long as %(best)s: %(why)s.") % told


def why_slow(slow: Case, best: Case) -> str:
    """The dominant reason: waits, wasted work, lost races or statements."""
    result = slow.result
    if result.waited_share >= MOSTLY_WAITING:
        return _("%(share)d %% of its workers' time was waiting") % {"share": 100 * result.waited_share}
    if slow.per_item(result.retries) >= MANY_RETRIES:
        return _("%(number)s tries in vain for each item") % {"number": decimal(slow.per_item(result.retries), 1)}
    if slow.per_item(result.lost_races) >= MANY_RACES:
        return _("%(number)s lost races for each item") % {"number": decimal(slow.per_item(result.lost_races), 1)}
    queries = {"number": decimal(result.queries_per_item, 1), "best": decimal(best.result.queries_per_item, 1)}
    if result.queries_per_item >= CLOSE * best.result.queries_per_item:
        return _("%(number)s statements for each item instead of %(best)s") % queries
    return _("the numbers do not tell why")


def work_dominates(clean: Sequence[Case]) -> Iterator[str]:
    """If the items' own work takes the time, the choice is about safety, not speed."""
    if clean and clean[0].work_share >= WORK_DOMINATES:
        told = {"share": 100 * min(1.0, clean[0].work_share), "pattern": clean[0].name}
        yield (
            _(
                "With %(pattern)s, %(share)d %% of the workers' time was the items' own work: no lock could be much "
                "faster here, so choose by what must not happen."
            )
            % told
        )


def contention(clean: Sequence[Case]) -> Iterator[str]:
    """Recommend optimistic or pessimistic updates, by how often writers collide."""
    found = {case.name: case for case in clean}
    optimist = found.get("account_optimistic")
    if optimist is None:
        return
    tries = optimist.per_item(optimist.result.retries)
    told = {"tries": decimal(1 + tries, 1), "hundredths": 100 * tries}
    if tries >= HIGH_CONTENTION:
        yield (
            _(
                "Contention is high: account_optimistic did the work of each operation %(tries)s times on average; "
                "waiting in line (account_pessimistic) does it once."
            )
            % told
        )
    elif tries <= LOW_CONTENTION:
        yield (
            _(
                "Contention is low: account_optimistic repeated %(hundredths)d of 100 operations, so no lock need be "
                "held during the work."
            )
            % told
        )


def queue_instead(clean: Sequence[Case]) -> Iterator[str]:
    """Compare batched claims with the best lock per item, at this work time."""
    claim, locker = first(clean, CLAIMS), first(clean, LOCK_PER_ITEM)
    if claim is None or locker is None:
        return
    times = claim.speed / max(locker.speed, 0.1)
    told = {"claim": claim.name, "locker": locker.name, "times": decimal(times, 1), "work": claim.plan.work_ms}
    if times >= QUEUE_FACTOR:
        yield (
            _(
                "A queue would serve better than locking at %(work)d ms of work for each item: %(claim)s did "
                "%(times)s times as many items a second as %(locker)s, the fastest with a lock for each item."
            )
            % told
        )
    elif times * CLOSE <= 1:
        yield (
            _(
                "A queue would not be faster at %(work)d ms of work for each item: %(locker)s, with a lock for each "
                "item, was ahead of %(claim)s."
            )
            % told
        )


def locks_held(clean: Sequence[Case]) -> Iterator[str]:
    """Report waits for a lock held during the work, if a claim waits far less."""
    claim = first(clean, CLAIMS)
    waiting = [case for case in clean if case.name in LOCK_PER_ITEM and case.result.waited_share >= LOCK_COSTS]
    if claim is None or not waiting or claim.result.waited_share * 2 > waiting[0].result.waited_share:
        return
    worst = max(waiting, key=lambda case: case.result.waited_share)
    told = {"pattern": worst.name, "share": 100 * worst.result.waited_share, "claim": claim.name}
    yield _(
        "%(pattern)s holds its lock during the work, and its workers spent %(share)d %% of their time waiting; "
        "%(claim)s ends its transaction before the work: %(less)d %%."
    ) % {**told, "less": 100 * claim.result.waited_share}


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
    """The fastest of these patterns."""
    return next((case for case in clean if case.name in names), None)


def words(subject: str) -> str:
    """The name of the rows in the reader's language."""
    return {"orders": _("orders"), "tasks": _("tasks"), "accounts": _("accounts")}.get(subject, subject)


Rule = Callable[[Sequence[Case]], Iterator[str]]
RULES: tuple[Rule, ...] = (fastest, queue_instead, locks_held, contention, work_dominates, wasteful)
