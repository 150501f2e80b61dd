"""`python fill.py NAME…` in the environment of the other queues: make their tables, and fill them by their own means.

A name is that of a function below; `volume=20000` passes a number.
"""

import os
import sys
from datetime import UTC, datetime
from decimal import Decimal
from urllib.parse import parse_qsl, unquote, urlsplit

import django
from django.conf import settings

HANDLERS = "tests.tasks.handlers"
LATER = datetime(2100, 1, 1, 12, 30, tzinfo=UTC)
APPS = {
    "celery_beat": ["django_celery_beat"],
    "django_q2": ["django_q"],
    "django_tasks_db": ["django_tasks", "django_tasks_db"],
    "procrastinate": ["procrastinate.contrib.django"],
    "volume": ["procrastinate.contrib.django"],
}


def main(names: list[str]) -> None:
    fillings = dict(name.partition("=")[::2] for name in names)
    set_up(sorted({app for name in fillings for app in APPS[name]}))
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    for name, number in fillings.items():
        globals()[name](*([int(number)] if number else []))


def set_up(apps: list[str]) -> None:
    url = urlsplit(os.environ["DATABASE_URL"])
    query = dict(parse_qsl(url.query))
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": url.path.lstrip("/"),
                "USER": unquote(url.username or ""),
                "PASSWORD": unquote(url.password or ""),
                "HOST": query.pop("host", None) or unquote(url.hostname or ""),
                "PORT": query.pop("port", None) or url.port or "",
                "OPTIONS": {**query, "options": "-c search_path=theirs"},
            }
        },
        INSTALLED_APPS=["django.contrib.contenttypes", *apps],
        TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default", "mail"]}},
        Q_CLUSTER={"name": "shop", "orm": "default", "retry": 600, "timeout": 60},
        SECRET_KEY="of the tests alone",
        USE_TZ=True,
        TIME_ZONE="Europe/Berlin",
    )
    django.setup()


def celery_beat() -> None:
    from django_celery_beat.models import (
        ClockedSchedule,
        CrontabSchedule,
        IntervalSchedule,
        PeriodicTask,
        SolarSchedule,
    )

    def add(name: str, task: str = f"{HANDLERS}.echo", **columns: object) -> None:
        PeriodicTask.objects.create(name=name, task=task, **columns)

    weekdays = CrontabSchedule.objects.create(minute="30", hour="3", day_of_week="1-5", timezone="Europe/Berlin")
    both = CrontabSchedule.objects.create(minute="0", hour="3", day_of_week="1", day_of_month="13")
    minutes = IntervalSchedule.objects.create(every=10, period="minutes")
    short = IntervalSchedule.objects.create(every=10, period="microseconds")
    once = ClockedSchedule.objects.create(clocked_time=LATER)
    add("nightly", crontab=weekdays, args='["x"]', queue="reports", expires=LATER)
    add("later", crontab=weekdays, start_time=LATER)
    add("sync", interval=minutes, kwargs='{"value": 1}', headers='{"a": 1}', priority=5)
    PeriodicTask.objects.filter(name="sync").update(last_run_at=datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC))
    add("off", interval=minutes, enabled=False)
    add("once", clocked=once, one_off=True, args="[7]")
    add("dawn", solar=SolarSchedule.objects.create(event="sunrise", latitude=52, longitude=13))
    add("both", crontab=both)
    add("short", interval=short)
    add("broken", interval=minutes, args="[1,")
    add("stranger", "proj.tasks.unknown", interval=minutes)
    add("misfit", f"{HANDLERS}.add", interval=minutes, args="[1]")


def django_q2() -> None:
    import shop
    from django_q.brokers import get_broker
    from django_q.models import Schedule
    from django_q.tasks import async_chain, async_task, schedule

    echo = f"{HANDLERS}.echo"
    async_task(echo, "running")
    get_broker().dequeue()
    async_task(f"{HANDLERS}.add", 1, second=2)
    async_task(shop.deliver, ("a", "tuple"), group="mails", hook="shop.hook")
    async_task(echo, Decimal("1.5"))
    async_task(shop.deliver, shop.deliver)
    async_chain([(echo, (1,)), (echo, (2,))])
    schedule(echo, 1, name="daily", schedule_type=Schedule.DAILY, next_run=LATER)
    schedule(echo, value=2, name="minutes", schedule_type=Schedule.MINUTES, minutes=5, next_run=LATER)
    schedule(echo, name="quarterly", schedule_type=Schedule.QUARTERLY, next_run=LATER)
    schedule(echo, name="cron", schedule_type=Schedule.CRON, cron="*/5 * * * *", cluster="other")
    schedule(echo, "once", name="once", schedule_type=Schedule.ONCE, next_run=LATER)
    schedule(echo, name="last day", schedule_type=Schedule.MONTHLY, next_run=datetime(2100, 1, 31, tzinfo=UTC))
    schedule(echo, name="thrice", schedule_type=Schedule.HOURLY, repeats=3)
    Schedule.objects.create(func=echo, args="'written'", schedule_type=Schedule.HOURLY, next_run=LATER)
    Schedule.objects.create(func=echo, kwargs="value='by hand'", schedule_type=Schedule.WEEKLY, next_run=LATER)


def django_tasks_db() -> None:
    import shop
    from django_tasks_db.models import DBTaskResult

    for value in ("first", "second", "third"):
        shop.send.enqueue(value)
    shop.send.using(priority=5, queue_name="mail", run_after=LATER).enqueue(value="later")
    shop.unknown.enqueue()
    running, done = shop.send.enqueue("running"), shop.send.enqueue("done")
    DBTaskResult.objects.get(id=running.id).claim("worker")
    DBTaskResult.objects.get(id=done.id).set_successful(None)


def procrastinate() -> None:
    from asgiref.sync import async_to_sync
    from django.db import connection
    from procrastinate.contrib.django import app

    def defer(value: object, name: str = "echo", **options: object) -> int:
        return app.configure_task(f"{HANDLERS}.{name}", **options).defer(value=value)

    defer("first", queue="mail", priority=7)
    defer("second", lock="account 1", queueing_lock="only one")
    defer("later", schedule_at=LATER, priority=1000)
    defer("misfit", name="add")
    defer("unknown", name="unknown")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE procrastinate_jobs SET status = 'doing' WHERE id = %s", [defer("running")])
        cursor.execute("UPDATE procrastinate_jobs SET attempts = 2 WHERE id = %s", [defer("again")])
    job = app.configure_task(f"{HANDLERS}.nothing", task_kwargs={"timestamp": 1}).job
    async_to_sync(app.job_manager.defer_periodic_job)(job=job, periodic_id="", defer_timestamp=1)


def volume(rows: int) -> None:
    from procrastinate.contrib.django import app

    task = app.configure_task("tests.tasks.worker_app.tasks.quick")
    for start in range(0, rows, 10_000):
        task.batch_defer(*[{}] * min(10_000, rows - start))


if __name__ == "__main__":
    main(sys.argv[1:])
