"""How the property test of a task's life writes to the tables beside the code in use, and looks at all of them."""

import json

from tasks.support.database import Connection, fetch
from tests.tasks.life_model import PROCESSING, Model

ENQUEUE = """
SELECT rowlock_enqueue(%(path)s, queue => %(queue)s, priority => %(priority)s, ordering_key => %(key)s,
    max_attempts => %(max_attempts)s, run_after => statement_timestamp() + %(ahead)s) AS id
"""
# What a trigger sees, nobody can write past it.
HISTORY = """
CREATE TEMPORARY TABLE history (id bigint, before integer, after integer);
CREATE FUNCTION pg_temp.keep_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO history VALUES (NEW.id, OLD.version, NEW.version);
    RETURN NULL;
END $$;
CREATE TRIGGER history AFTER UPDATE ON tasks_task FOR EACH ROW EXECUTE FUNCTION pg_temp.keep_history();
"""
# Everything that the model tells, in one look.
TABLES = """
SELECT to_jsonb(everything)::text AS found FROM (SELECT
    ARRAY(SELECT to_jsonb(task) || jsonb_build_object(
              'run_after', (extract(epoch FROM task.run_after) * 1000000)::bigint,
              'is_due', task.run_after <= statement_timestamp(), 'is_cancelling', task.cancel_requested_at IS NOT NULL)
          FROM tasks_task AS task) AS tasks,
    ARRAY(SELECT jsonb_build_array(task_id, worker_id, expected_version, actual_version, intent)
          FROM tasks_refusedwrite) AS refused,
    ARRAY(SELECT jsonb_build_array(task_id, number, worker_id, outcome) FROM tasks_attempt) AS attempts,
    (SELECT coalesce(sum(completed + failed), 0) FROM tasks_throughput) AS ended,
    (SELECT count(*) FROM history WHERE after <= before) AS standing_still,
    (SELECT count(*) FROM tasks_intervention WHERE version_after <= version_before) AS told_wrong) AS everything
"""
# What is due within seconds would be due or not by chance.
POSTPONE = """
UPDATE tasks_task SET run_after = run_after + interval '1 hour'
WHERE status = 'READY' AND run_after > statement_timestamp() AND run_after < statement_timestamp() + interval '30 min'
RETURNING id
"""
# A claim throws dice between queues; an example must run in the same way again.
SAME_CHANCE = "SELECT setseed(0.5)"
UNLOCK = """
SELECT pg_advisory_unlock(hashtext('rowlock:presence:' || current_schema()), hashtext(%(id)s::text))
"""
# Raw SQL that knows nothing of versions, or lies about them.
FROM_OUTSIDE = [
    "UPDATE tasks_task SET priority = priority WHERE id = %s",
    "UPDATE tasks_task SET version = 1 WHERE id = %s",
    "UPDATE tasks_task SET version = version + 3 WHERE id = %s",
]


def look(connection: Connection, model: Model) -> None:
    """Fails where the tables are not what the model says."""
    found = json.loads(fetch(connection, TABLES)[0]["found"])
    tasks = {task["id"]: task for task in found["tasks"]}
    assert tasks.keys() == model.tasks.keys()
    for task in tasks.values():
        model.tasks[task["id"]].compare(task, is_touched=task["id"] in model.touched)
    model.touched.clear()
    keys = [task["ordering_key"] for task in tasks.values() if task["status"] == PROCESSING and task["ordering_key"]]
    assert len(set(keys)) == len(keys), "two of a key at once"
    assert sorted(map(str, found["refused"])) == sorted(map(str, model.refused))
    assert sorted(map(str, found["attempts"])) == sorted(map(str, model.attempts))
    assert found["ended"] == model.ended
    assert (found["standing_still"], found["told_wrong"]) == (0, 0)
