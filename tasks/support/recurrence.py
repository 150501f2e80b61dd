"""The times of a schedule: a cron expression in its time zone, or an interval; and what daylight saving does to them.

The rule is Debian's cron, as cronsim implements it. A job at fixed times (neither minute nor hour begins with `*`) runs
once on every day that it names: a time that the clock skips moves to the first minute after the gap, and of a time that
occurs twice only the first counts. Any other expression follows the clock on the wall: it has no times in the gap, and
those of the repeated hour twice. An interval counts elapsed time and knows no zone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError
from django.utils.translation import gettext as _

from tasks.exceptions import InvalidSchedule
from tasks.support import durations, reading

LONGEST_CRON = 200
LONGEST_EVERY = 315_360_000  # ten years, in seconds
MISSED, OVERLAP = ("skip", "once", "all"), ("skip", "queue", "allow")
MOST_COUNTED = 1000
SHOWN_TIMES = 5
FAR = timedelta(days=366)
AROUND = timedelta(hours=3)  # a change of the clock, and what it moves
AT_MOST_AROUND = 500
ANY_TIME = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Moment:
    """One time, and in `warning` what daylight saving does to it; an empty text: nothing."""

    at: datetime
    warning: str = ""


@dataclass(frozen=True)
class Forecast:
    """The next times, and beside them those of the coming year that a change of the clock moves, doubles or skips."""

    next: list[Moment]
    changes: list[Moment]


@dataclass(frozen=True)
class Recurrence:
    """Either `cron` or `every_seconds`, and the zone in which the cron expression is read."""

    cron: str | None = None
    every_seconds: int | None = None
    timezone: str = "UTC"

    @property
    def zone(self) -> ZoneInfo:
        return zone(self.timezone)

    @property
    def is_fixed(self) -> bool:
        """True for a job at fixed times, which runs once on each of its days."""
        minute, hour = (self.cron or "* *").split()[:2]
        return not minute.startswith("*") and not hour.startswith("*")

    def check(self) -> None:
        """Raise InvalidSchedule unless this has a time in the next fifty years."""
        if (self.cron is None) == (self.every_seconds is None):
            raise InvalidSchedule("A schedule has either a cron expression or an interval: pass one of them.")
        zone(self.timezone)
        if self.cron is not None:
            if self._first_of_cron(ANY_TIME) is None:
                raise InvalidSchedule(f"{reading.shown(self.cron)} never comes: correct its day and month.")
        elif not 1 <= (self.every_seconds or 0) <= LONGEST_EVERY:
            raise InvalidSchedule(f"An interval has 1 s to 3650 d, not {self.every_seconds} s.")

    def first(self, now: datetime) -> datetime | None:
        """The first time of a new schedule; None if there is none."""
        if self.every_seconds is not None:
            return now + timedelta(seconds=self.every_seconds)
        return self._first_of_cron(now)

    def following(self, at: datetime) -> datetime | None:
        """The time after `at`, which is a time of this schedule."""
        return self.first(at)

    def following_now(self, at: datetime, now: datetime) -> datetime | None:
        """The first time after `now` of a schedule that has the time `at`: an interval keeps its phase."""
        if self.every_seconds is None:
            return self._first_of_cron(max(at, now))
        every = timedelta(seconds=self.every_seconds)
        return at + max(1, (now - at) // every + 1) * every

    def due(self, at: datetime, now: datetime) -> Iterator[datetime]:
        """The times from `at`, which is one, up to now."""
        following: datetime | None = at
        while following is not None and following <= now:
            yield following
            following = self.following(following)

    def count_due(self, at: datetime, now: datetime) -> int:
        """Their number, of an interval exactly, else at most MOST_COUNTED."""
        if self.every_seconds is not None:
            return max(0, (now - at) // timedelta(seconds=self.every_seconds) + 1)
        return sum(1 for _ in islice(self.due(at, now), MOST_COUNTED))

    def describe(self) -> str:
        """`*/5 * * * * (Europe/Berlin)`, or `every 10m`."""
        if self.every_seconds is not None:
            return f"every {durations.describe(timedelta(seconds=self.every_seconds))}"
        return f"{self.cron} ({self.timezone})"

    def forecast(self, now: datetime, ends_at: datetime | None = None) -> Forecast:
        """The next five times after now, up to `ends_at`, and the times that the clock changes in the coming year."""
        near = [moment for moment in islice(self._moments(now), SHOWN_TIMES) if not ends_at or moment.at <= ends_at]
        if self.cron is None or self.timezone == "UTC":
            return Forecast(near, [])
        far = [moment for change in changes_of(self.zone, now) for moment in self._moments_around(change)]
        return Forecast(near, [moment for moment in far if not ends_at or moment.at <= ends_at])

    def _first_of_cron(self, after: datetime) -> datetime | None:
        """The first time of the expression after this one, in UTC."""
        try:
            for at in CronSim(self.cron or "", after.astimezone(self.zone)):
                # In the second pass of a repeated hour cronsim starts over with the first one.
                if at.astimezone(UTC) > after:
                    return at.astimezone(UTC)
        except (CronSimError, ValueError, OverflowError) as error:
            raise InvalidSchedule(
                f"{reading.shown(self.cron or '')} is not a cron expression ({error}): write minute, hour, day, month "
                "and weekday, like '*/5 * * * *' or '30 3 * * mon-fri'."
            ) from error
        return None

    def _moments(self, after: datetime) -> Iterator[Moment]:
        at = self.first(after)
        before = after
        while at is not None:
            yield Moment(at, self._warning(before, at) if self.cron is not None else "")
            before, at = at, self.following(at)

    def _moments_around(self, change: datetime) -> Iterator[Moment]:
        for moment in islice(self._moments(change - AROUND), AT_MOST_AROUND):
            if moment.at > change + AROUND:
                # The first one after the gap tells of what it leaves out, however late it is.
                if moment.at < change + FAR and moment.warning:
                    yield moment
                return
            if moment.warning:
                yield moment

    def _warning(self, before: datetime, at: datetime) -> str:
        """The effect of daylight saving on the time `at`, which follows `before`."""
        local = at.astimezone(self.zone)
        wall = local.replace(tzinfo=None)
        if is_twice(local):
            if self.is_fixed:
                return _("%(time)s occurs twice on this day: it runs at the first") % {"time": f"{wall:%H:%M}"}
            return _("%(time)s occurs twice on this day: it runs at both") % {"time": f"{wall:%H:%M}"}
        started = before.astimezone(self.zone).replace(tzinfo=None)
        for named in islice(CronSim(self.cron or "", started), AT_MOST_AROUND):
            if named > wall:
                break
            if is_never(named.replace(tzinfo=self.zone)):
                texts = {"time": f"{named:%H:%M}", "instead": f"{wall:%H:%M}"}
                if self.is_fixed:
                    return _("%(time)s does not exist on this day: it runs at %(instead)s") % texts
                return _("%(time)s does not exist on this day: it does not run then, but at %(instead)s") % texts
        return ""


def recurrence(cron: str | None, every: object, timezone: str | None) -> Recurrence:
    """A checked recurrence of what people write: `every` as seconds, as a duration or as text like 10m.

    Raises InvalidSchedule.
    """
    found = Recurrence(
        None if cron is None else " ".join(checked_text(cron).split()),
        None if every is None else seconds_of(every),
        timezone or default_zone(),
    )
    found.check()
    return found


def checked_text(cron: object) -> str:
    """A cron expression of five fields."""
    if not isinstance(cron, str):
        raise InvalidSchedule(f"A cron expression is text, not {type(cron).__name__}: write it like '*/5 * * * *'.")
    if len(cron) > LONGEST_CRON or len(cron.split()) != 5:
        raise InvalidSchedule(
            f"{reading.shown(cron)} is not a cron expression of five fields: write minute, hour, day, month and "
            "weekday, like '*/5 * * * *'. For seconds, use an interval."
        )
    return cron


def seconds_of(every: object) -> int:
    """The whole seconds of an interval: a number, a timedelta, or text like 10m."""
    try:
        if isinstance(every, str):
            every = durations.parse(every)
    except ValueError as error:
        raise InvalidSchedule(str(error)) from error
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 1 <= seconds <= LONGEST_EVERY:
        raise InvalidSchedule(f"{every!r} is not an interval of 1 s to 3650 d: write it like 10m, or as seconds.")
    if seconds != int(seconds):
        raise InvalidSchedule(f"{every!r} is not an interval of whole seconds.")
    return int(seconds)


def default_zone() -> str:
    """The project's own zone."""
    from django.conf import settings

    return settings.TIME_ZONE


def zone(name: str) -> ZoneInfo:
    """The time zone of this name. Raises InvalidSchedule with similar names."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        similar = get_close_matches(name, available_timezones(), n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(similar)}?" if similar else "write it like Europe/Berlin."
        raise InvalidSchedule(f"{reading.shown(name)} is not a known time zone: {hint}") from error


def is_never(local: datetime) -> bool:
    """True for a time that the clock skips in its zone."""
    return local.replace(tzinfo=None) != local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None)


def is_twice(local: datetime) -> bool:
    """True for a time that the clock shows twice in its zone."""
    return not is_never(local) and local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()


def changes_of(zone: ZoneInfo, now: datetime) -> Iterator[datetime]:
    """The changes of the zone's clock in the coming year."""
    low = now
    while low < now + FAR:
        high = low + timedelta(days=1)
        if _offset(zone, low) != _offset(zone, high):
            inner, outer = low, high
            while outer - inner > timedelta(seconds=1):
                middle = inner + (outer - inner) / 2
                inner, outer = (middle, outer) if _offset(zone, middle) == _offset(zone, low) else (inner, middle)
            yield outer
        low = high


def _offset(zone: ZoneInfo, at: datetime) -> timedelta | None:
    return at.astimezone(zone).utcoffset()
