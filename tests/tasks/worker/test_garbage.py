"""What Python's collector of garbage does to a worker process."""

from tests.tasks.worker_app import tasks as handlers


def test_what_is_loaded_is_no_garbage(database, start_worker):
    [task_id] = database.enqueue(handlers.count_frozen)
    assert start_worker("--burst").wait() == 0
    assert database.task(task_id).return_value > 10_000


def test_tasks_in_hand_are_no_garbage(database, start_worker):
    """Of 5,000 tasks Python's default makes ten collections."""
    [first] = database.enqueue(handlers.count_collections, priority=1)
    database.fill(handlers.quick, 5_000)
    [last] = database.enqueue(handlers.count_collections, priority=-1)
    assert start_worker("--burst").wait() == 0
    assert database.task(last).return_value - database.task(first).return_value <= 2
