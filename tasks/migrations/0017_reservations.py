"""What busy workers reserve (see tasks/reservation.py), and who else must leave alone what is in there.

The function is asked after rows were locked, in the middle of a statement whose snapshot is older than the locks. As
it is volatile and in PL/pgSQL, it sees what has been committed by now: a worker may have reserved these rows, begun
with them and died since the statement began.
"""

from django.db import migrations, models

RESERVED = """
CREATE FUNCTION rowlock_reserved(ids bigint[], by_worker text, by_slot integer) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    found bigint[] := '{}';
    noted record;
BEGIN
    FOR noted IN
        SELECT first_id, first_id + 8 * length(members) AS end_id, members FROM tasks_reservation
        WHERE members <> '' AND (worker_id <> by_worker OR slot <> by_slot)
    LOOP
        found := found || ARRAY(
            SELECT asked.id FROM unnest(ids) AS asked (id)
            WHERE CASE WHEN asked.id >= noted.first_id AND asked.id < noted.end_id
                       THEN get_bit(noted.members, asked.id - noted.first_id) = 1 ELSE false END);
    END LOOP;
    RETURN found;
END
$$
"""
FORGET_RESERVED = "DROP FUNCTION rowlock_reserved(bigint[], text, integer)"


class Migration(migrations.Migration):
    dependencies = [("tasks", "0016_count_keyed_from_index")]

    operations = [
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("worker_id", models.TextField()),
                ("slot", models.SmallIntegerField()),
                ("queue_name", models.TextField()),
                ("first_id", models.BigIntegerField()),
                ("members", models.BinaryField()),
                ("reserved_at", models.DateTimeField()),
            ],
            options={"default_permissions": ("view",)},
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=models.UniqueConstraint(fields=("worker_id", "slot"), name="tasks_reservation_slot"),
        ),
        migrations.AddField(
            model_name="worker",
            name="heeds_reservations",
            field=models.BooleanField(db_default=False),
        ),
        migrations.RunSQL(RESERVED, FORGET_RESERVED),
    ]
