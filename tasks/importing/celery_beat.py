"""The periodic tasks of django-celery-beat. A clocked one is a task for a time; the others are schedules."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from tasks.exceptions import InvalidSchedule
from tasks.importing.found import NO_JSON, Found, Timing, Unfit, moment, pages, present, require_table
from tasks.support.recurrence import Recurrence

# The table has a column `task`, so its alias is another word.
CELERY_BEAT = """
SELECT periodic.id, (to_jsonb(periodic) || jsonb_build_object('crontab', to_jsonb(crontab),
    'interval', to_jsonb("interval"), 'solar', to_jsonb(solar), 'clocked', to_jsonb(clocked)))::text AS row
FROM django_celery_beat_periodictask AS periodic
LEFT JOIN django_celery_beat_crontabschedule AS crontab ON crontab.id = periodic.crontab_id
LEFT JOIN django_celery_beat_intervalschedule AS "interval" ON "interval".id = periodic.interval_id
LEFT JOIN django_celery_beat_solarschedule AS solar ON solar.id = periodic.solar_id
LEFT JOIN django_celery_beat_clockedschedule AS clocked ON clocked.id = periodic.clocked_id
WHERE periodic.id > %(after)s::bigint ORDER BY periodic.id LIMIT %(rows)s::int
"""
# Brokers disagree on which end of `priority` is first.
NO_COUNTERPART = ("exchange", "routing_key", "headers", "priority", "expire_seconds")
CRON_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def read() -> Iterator[Found]:
    """Every periodic task; those that are off become paused schedules."""
    require_table("django_celery_beat_periodictask", "django-celery-beat")
    for page in pages(CELERY_BEAT, 0):
        yield _found(page["row"])


def _found(row: Mapping[str, Any]) -> Found:
    common: dict[str, Any] = {
        "id": str(row["id"]),
        "function": row["task"],
        "queue_name": row["queue"] or None,
        "options": present(row, NO_COUNTERPART),
    }
    try:
        common["args"], common["kwargs"] = json.loads(row["args"] or "[]"), json.loads(row["kwargs"] or "{}")
        if row["clocked"]:
            return Found(**common, run_after=_clocked(row))
        return Found(**common, schedule=_timing(row))
    except Unfit as unfit:
        return Found(**common, problem=unfit.reason)
    except InvalidSchedule as error:
        return Found(**common, problem=f"its times have no counterpart: {error}")
    except ValueError:
        return Found(**common, problem=NO_JSON)


def _clocked(row: Mapping[str, Any]) -> str:
    if not row["enabled"]:
        raise Unfit("it runs once, and is off or has run")
    at: str = row["clocked"]["clocked_time"]
    return at


def _timing(row: Mapping[str, Any]) -> Timing:
    if row["one_off"]:
        raise Unfit("it runs once, at a repeating time")
    if row["solar"]:
        raise Unfit("it follows the sun")
    settings: dict[str, Any] = {"ends_at": moment(row["expires"]), "paused": not row["enabled"], "timezone": None}
    if row["interval"]:
        settings["every"] = every = _every(row["interval"])
        return Timing(row["name"], settings, _first(row, every))
    if not row["crontab"]:
        raise Unfit("it has no times")
    settings["cron"], settings["timezone"] = _cron(row["crontab"]), row["crontab"]["timezone"]
    start = moment(row["start_time"])
    first = Recurrence(cron=settings["cron"], timezone=settings["timezone"]).first(start) if start else None
    return Timing(row["name"], settings, first)


def _every(interval: Mapping[str, Any]) -> timedelta:
    every = timedelta(**{interval["period"]: interval["every"]})
    if every < timedelta(seconds=1) or every % timedelta(seconds=1):
        raise Unfit("its interval is not of whole seconds")
    return every


def _first(row: Mapping[str, Any], every: timedelta) -> datetime | None:
    """The next time of an interval, which goes on from its last run."""
    last, start = moment(row["last_run_at"]), moment(row["start_time"])
    after_last = last + every if last else None
    return max(filter(None, (after_last, start)), default=None)


def _cron(crontab: Mapping[str, Any]) -> str:
    """The five fields in the order of cron.

    With a day of the month and a weekday, Celery wants both and cron either.
    """
    fields = [crontab[name].replace(" ", "") for name in CRON_FIELDS]
    if not fields[2].startswith("*") and not fields[4].startswith("*"):
        raise Unfit("its day of the month and its weekday must both fit, for which cron has no expression")
    return " ".join(fields)
