"""The version grows by at least one on every update, whoever makes it; and other models can have that too."""

import pytest
from django.db import IntegrityError, connection, migrations, models, transaction
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import MigrationWriter

import tasks.locking.version_trigger
from tasks.locking import VersionTrigger
from tasks.models import HIGHEST_VERSION, Task
from tests.tasks import claiming, rows
from tests.tasks.claiming import STRATEGIES, claim, ids

pytestmark = pytest.mark.django_db


def execute(sql, *params):
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else None


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ("priority = 7", 6),
        ("status = status", 6),
        ("version = version", 6),
        ("version = 1", 6),
        ("version = 5", 6),
        ("version = -5, priority = 7", 6),
        ("version = version + 1", 6),
        ("version = version + 10", 15),
    ],
)
def test_raw_sql_raises_it_and_cannot_lower_it(change, version):
    rows.ready(version=5)
    execute(f"UPDATE tasks_task SET {change}")
    assert Task.objects.get().version == version


def test_the_orm_does_not_pass_it_either():
    task = rows.ready(version=5)
    Task.objects.filter(pk=task.pk).update(priority=1)
    task.priority = 2
    task.save()
    task.refresh_from_db()
    assert (task.version, task.priority) == (7, 2)


def test_an_upsert_is_an_update():
    task = rows.ready(version=5)
    execute(
        "INSERT INTO tasks_task (id, task_path) VALUES (%s, 'b') ON CONFLICT (id) DO UPDATE SET priority = 3", task.pk
    )
    assert Task.objects.get().version == 6


def test_every_row_of_an_update_has_its_own():
    rows.many(3, version=5)
    rows.ready(version=9)
    execute("UPDATE tasks_task SET priority = 1")
    assert sorted(Task.objects.values_list("version", flat=True)) == [6, 6, 6, 10]


UPDATE = "UPDATE tasks_task SET version = %s"
INSERT = "INSERT INTO tasks_task (task_path, version) SELECT 'a', %s"


class TestAtTheEndOfItsType:
    END = 2_147_483_647

    @pytest.mark.parametrize("version", [HIGHEST_VERSION + 1, END])
    def test_raw_sql_cannot_set_it_there(self, version):
        rows.ready(version=5)
        for statement in (UPDATE, INSERT):
            with pytest.raises(IntegrityError, match="tasks_task_version_leaves_room"), transaction.atomic():
                execute(statement, version)

    @pytest.mark.parametrize("change", ["priority = 7", "version = version + 1", "version = 3", "version = 2147483647"])
    def test_every_update_of_the_highest_begins_anew(self, change):
        rows.ready(version=HIGHEST_VERSION)
        execute(f"UPDATE tasks_task SET {change}")
        assert Task.objects.get().version == 1

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_such_a_row_is_claimed_with_the_others_and_completed(self, strategy):
        every = {rows.ready(version=version).pk for version in (HIGHEST_VERSION, 1, HIGHEST_VERSION - 1)}
        claimed = []
        while len(claimed) < 3:
            claimed += claim(5, strategy=strategy)
        assert set(ids(claimed)) == every
        assert {Task.objects.get(pk=one.id).version for one in claimed} == {1, 2, HIGHEST_VERSION}
        for one in claimed:
            claiming.complete(connection, "w1", one)
        assert set(Task.objects.values_list("status", flat=True)) == {"COMPLETED"}


class TestInAMigrationOfAnotherModel:
    CREATE = migrations.CreateModel(
        "Invoice",
        [
            ("id", models.BigAutoField(primary_key=True)),
            ("paid", models.BooleanField()),
            ("version", models.IntegerField()),
        ],
        options={"db_table": "billing invoices"},
    )
    TRIGGER = VersionTrigger("billing.Invoice")

    @pytest.fixture
    def migrated(self):
        """The state before and after the trigger; the table holds one invoice of version 3."""
        empty, before = ProjectState(), ProjectState()
        self.CREATE.state_forwards("billing", before)
        after = before.clone()
        self.TRIGGER.state_forwards("billing", after)
        with connection.schema_editor() as editor:
            self.CREATE.database_forwards("billing", editor, empty, before)
            self.TRIGGER.database_forwards("billing", editor, before, after)
        execute('INSERT INTO "billing invoices" (id, paid, version) VALUES (1, false, 3)')
        return before, after

    def pay(self) -> int:
        execute('UPDATE "billing invoices" SET paid = true')
        [(version,)] = execute('SELECT version FROM "billing invoices"')
        return version

    @pytest.mark.usefixtures("migrated")
    def test_it_works_as_for_tasks(self):
        assert [self.pay(), self.pay()] == [4, 5]

    def test_it_can_be_taken_back(self, migrated):
        before, after = migrated
        with connection.schema_editor() as editor:
            self.TRIGGER.database_backwards("billing", editor, after, before)
        assert self.pay() == 3
        rows.ready(version=5)
        execute("UPDATE tasks_task SET priority = 1")
        assert Task.objects.get().version == 6, "the tasks' own trigger went with it"

    def test_it_leaves_the_models_as_they_are(self, migrated):
        before, after = migrated
        assert before == after

    def test_makemigrations_can_write_it_and_tell_what_it_does(self):
        written, imports = MigrationWriter.serialize(self.TRIGGER)
        assert imports == {"import tasks.locking.version_trigger"}
        assert eval(written, {"tasks": tasks}).deconstruct() == self.TRIGGER.deconstruct()
        assert "billing.Invoice" in self.TRIGGER.describe()
        assert self.TRIGGER.migration_name_fragment == "version_trigger_invoice"
