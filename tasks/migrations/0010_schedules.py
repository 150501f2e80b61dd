"""Schedules and their ticks."""

from django.db import migrations, models

import tasks.support.durations
from tasks.locking import VersionTrigger

# Whoever changes the times of a schedule, raw SQL included: its next time is that of the old ones no more, so that a
# scheduler computes it anew. `edition` counts changes of settings, and a schedule that is not paused has no reason.
KEEP_SCHEDULE = """
CREATE FUNCTION rowlock_keep_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF (NEW.cron, NEW.every_seconds, NEW.timezone) IS DISTINCT FROM (OLD.cron, OLD.every_seconds, OLD.timezone)
            AND (NEW.next_at, NEW.ended_at) IS NOT DISTINCT FROM (OLD.next_at, OLD.ended_at) THEN
            NEW.next_at := NULL;
            NEW.ended_at := NULL;
        END IF;
        IF NEW.ends_at IS DISTINCT FROM OLD.ends_at THEN
            NEW.next_at := CASE WHEN NEW.next_at > NEW.ends_at THEN NULL ELSE NEW.next_at END;
            NEW.ended_at := nullif(NEW.ended_at, OLD.ended_at);
        END IF;
        NEW.edition := OLD.edition + CASE WHEN
            (NEW.task_path, NEW.args, NEW.kwargs, NEW.queue_name, NEW.priority, NEW.cron, NEW.every_seconds,
                NEW.timezone, NEW.missed, NEW.overlap, NEW.ends_at, NEW.paused, NEW.problem, NEW.declared)
            IS DISTINCT FROM
            (OLD.task_path, OLD.args, OLD.kwargs, OLD.queue_name, OLD.priority, OLD.cron, OLD.every_seconds,
                OLD.timezone, OLD.missed, OLD.overlap, OLD.ends_at, OLD.paused, OLD.problem, OLD.declared)
            THEN 1 ELSE 0 END;
    END IF;
    IF NEW.next_at IS NOT NULL THEN
        NEW.ended_at := NULL;
    END IF;
    IF NEW.paused THEN
        NEW.paused_at := coalesce(NEW.paused_at, statement_timestamp());
    ELSE
        NEW.paused_at := NULL;
        NEW.paused_by := '';
        NEW.problem := '';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER rowlock_keep_schedule BEFORE INSERT OR UPDATE ON tasks_schedule
    FOR EACH ROW EXECUTE FUNCTION rowlock_keep_schedule();
"""
LET_SCHEDULE_GO = "DROP TRIGGER rowlock_keep_schedule ON tasks_schedule; DROP FUNCTION rowlock_keep_schedule();"

# The limits of tasks/support/reading.py, and what Python can read back, for raw SQL.
READABLE = """
ALTER TABLE tasks_schedule ADD CONSTRAINT tasks_schedule_names_readable CHECK (
    length(name) BETWEEN 1 AND 200 AND length(task_path) BETWEEN 1 AND 500 AND length(timezone) BETWEEN 1 AND 100
    AND length(queue_name) BETWEEN 1 AND 255 AND length(cron) BETWEEN 1 AND 200 AND length(paused_by) <= 255
    AND length(problem) <= 1000
    AND concat(name, task_path, timezone, queue_name, cron, paused_by, problem) !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
ALTER TABLE tasks_schedule ADD CONSTRAINT tasks_schedule_argument_shapes CHECK (
    jsonb_typeof(args) = 'array' AND jsonb_typeof(kwargs) = 'object'
    AND coalesce(jsonb_typeof(declared), 'object') = 'object');
ALTER TABLE tasks_schedule ADD CONSTRAINT tasks_schedule_times_readable CHECK (
    coalesce(next_at, created_at) BETWEEN '0001-01-02' AND '9999-12-30'
    AND coalesce(ends_at, created_at) BETWEEN '0001-01-02' AND '9999-12-30');
ALTER TABLE tasks_tick ADD CONSTRAINT tasks_tick_name_readable CHECK (
    length(schedule_name) BETWEEN 1 AND 200 AND schedule_name !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
"""
ANYTHING = """
ALTER TABLE tasks_tick DROP CONSTRAINT tasks_tick_name_readable;
ALTER TABLE tasks_schedule DROP CONSTRAINT tasks_schedule_times_readable;
ALTER TABLE tasks_schedule DROP CONSTRAINT tasks_schedule_argument_shapes;
ALTER TABLE tasks_schedule DROP CONSTRAINT tasks_schedule_names_readable;
"""

# A schedule that ticks each second is updated as often, and found by its next time.
STORAGE = """
ALTER TABLE tasks_schedule SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
"""
PLAIN = """
ALTER TABLE tasks_schedule RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
"""


class Migration(migrations.Migration):
    dependencies = [
        ("tasks", "0010_slots"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("task_path", models.TextField()),
                ("args", models.JSONField(db_default=[])),
                ("kwargs", models.JSONField(db_default={})),
                ("queue_name", models.TextField(blank=True, null=True)),
                ("priority", models.SmallIntegerField(blank=True, null=True)),
                ("cron", models.TextField(blank=True, null=True)),
                ("every_seconds", models.IntegerField(blank=True, null=True)),
                ("timezone", models.TextField(db_default="UTC")),
                (
                    "missed",
                    models.TextField(
                        choices=[("skip", "Skip them"), ("once", "One task for all"), ("all", "One task for each")],
                        db_default="skip",
                    ),
                ),
                (
                    "overlap",
                    models.TextField(
                        choices=[("skip", "Skip the tick"), ("queue", "Wait behind it"), ("allow", "Run beside it")],
                        db_default="skip",
                    ),
                ),
                ("ends_at", models.DateTimeField(blank=True, null=True)),
                ("paused", models.BooleanField(db_default=False)),
                ("paused_at", models.DateTimeField(blank=True, null=True)),
                ("paused_by", models.TextField(blank=True, db_default="")),
                ("problem", models.TextField(blank=True, db_default="")),
                ("next_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("last_at", models.DateTimeField(blank=True, null=True)),
                (
                    "last_outcome",
                    models.TextField(
                        blank=True,
                        choices=[
                            ("enqueued", "Enqueued"),
                            ("skipped", "Skipped"),
                            ("missed", "Missed"),
                            ("manual", "Run by hand"),
                        ],
                        db_default="",
                    ),
                ),
                ("last_task_id", models.BigIntegerField(blank=True, null=True)),
                ("held_by_task_id", models.BigIntegerField(blank=True, null=True)),
                ("declared", models.JSONField(blank=True, null=True)),
                ("version", models.IntegerField(db_default=1)),
                ("edition", models.IntegerField(db_default=1)),
                ("created_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
            ],
            options={
                "permissions": [
                    ("edit_schedule", "Can add, edit and delete schedules"),
                    ("pause_schedule", "Can pause and resume schedules"),
                    ("run_schedule", "Can run schedules now"),
                ],
                "abstract": False,
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        models.OrderBy(models.F("next_at"), nulls_first=True),
                        condition=models.Q(("ended_at__isnull", True), ("paused", False)),
                        name="tasks_schedule_due",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("cron__isnull", False), ("every_seconds__isnull", True)),
                            models.Q(("cron__isnull", True), ("every_seconds__isnull", False)),
                            _connector="OR",
                        ),
                        name="tasks_schedule_cron_or_every",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("every_seconds__isnull", True),
                            models.Q(("every_seconds__gte", 1), ("every_seconds__lte", 315360000)),
                            _connector="OR",
                        ),
                        name="tasks_schedule_every_in_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("missed__in", ("skip", "once", "all"))), name="tasks_schedule_missed_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("overlap__in", ("skip", "queue", "allow"))),
                        name="tasks_schedule_overlap_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("last_outcome__in", ("", "enqueued", "skipped", "missed", "manual"))),
                        name="tasks_schedule_outcome_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("held_by_task_id__isnull", False), ("last_outcome", "skipped")),
                            models.Q(
                                models.Q(("last_outcome", "skipped"), _negated=True), ("held_by_task_id__isnull", True)
                            ),
                            _connector="OR",
                        ),
                        name="tasks_schedule_held_iff_skipped",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("priority__isnull", True),
                            models.Q(("priority__gte", -100), ("priority__lte", 100)),
                            _connector="OR",
                        ),
                        name="tasks_schedule_priority_in_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("paused", True), ("paused_at__isnull", False)),
                            models.Q(
                                ("paused", False), ("paused_at__isnull", True), ("paused_by", ""), ("problem", "")
                            ),
                            _connector="OR",
                        ),
                        name="tasks_schedule_pause_whole",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("next_at__isnull", True), ("ended_at__isnull", True), _connector="OR"),
                        name="tasks_schedule_over_has_no_next",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("next_at__isnull", True),
                            ("ends_at__isnull", True),
                            ("next_at__lte", models.F("ends_at")),
                            _connector="OR",
                        ),
                        name="tasks_schedule_next_before_end",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("edition__gte", 1), ("version__gte", 1), ("version__lte", 2000000000)),
                        name="tasks_schedule_version_in_range",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Tick",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("schedule_name", models.TextField()),
                ("at", models.DateTimeField()),
                ("made_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                (
                    "outcome",
                    models.TextField(
                        choices=[
                            ("enqueued", "Enqueued"),
                            ("skipped", "Skipped"),
                            ("missed", "Missed"),
                            ("manual", "Run by hand"),
                        ]
                    ),
                ),
                ("task_id", models.BigIntegerField(blank=True, null=True)),
                ("held_by_task_id", models.BigIntegerField(blank=True, null=True)),
                ("times", models.IntegerField(db_default=1)),
            ],
            options={
                "abstract": False,
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("task_id__isnull", False)), fields=["task_id"], name="tasks_tick_task"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("schedule_name", "at"), name="tasks_tick_once"),
                    models.CheckConstraint(
                        condition=models.Q(("outcome__in", ["enqueued", "skipped", "missed", "manual"])),
                        name="tasks_tick_outcome_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("outcome__in", ("enqueued", "manual")), ("task_id__isnull", False)),
                            models.Q(
                                models.Q(("outcome__in", ("enqueued", "manual")), _negated=True),
                                ("task_id__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="tasks_tick_task_iff_enqueued",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("held_by_task_id__isnull", False), ("outcome", "skipped")),
                            models.Q(
                                models.Q(("outcome", "skipped"), _negated=True), ("held_by_task_id__isnull", True)
                            ),
                            _connector="OR",
                        ),
                        name="tasks_tick_held_iff_skipped",
                    ),
                    models.CheckConstraint(condition=models.Q(("times__gte", 1)), name="tasks_tick_stands_for_some"),
                ],
            },
        ),
        VersionTrigger("tasks.Schedule"),
        migrations.RunSQL(KEEP_SCHEDULE, LET_SCHEDULE_GO),
        migrations.RunSQL(READABLE, ANYTHING),
        migrations.RunSQL(STORAGE, PLAIN),
    ]
