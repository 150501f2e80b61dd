"""What Python's collector of garbage does to a worker process."""

from tests.tasks.worker_app import tasks as handlers


def test_what_is_loaded_is_no_garbage(database, start_worker):
    [task_id] = database.enqueue(handlers.count_frozen)
    assert start_worker("--burst").wait() == 0
    assert database.task(task_id).return_value > 10_000
