"""The framework's signals of a run, task_started and task_finished: whether anybody listens."""

import logging

from tasks.compat import FRAMEWORK, log_task_finished, log_task_started, task_finished, task_started

# The framework's own receivers, which log each run that succeeds at INFO.
LOGS = {id(log_task_started), id(log_task_finished)}


def are_heard() -> bool:
    """Whether a run that succeeds has anybody to tell: a receiver besides the framework's log, or that log itself.

    Telling nobody took a third of a worker's time when its tasks did next to nothing.
    """
    keys = [key for signal in (task_started, task_finished) for key, *_ in signal.receivers]
    return any(receiver not in LOGS for receiver, _ in keys) or logging.getLogger(FRAMEWORK).isEnabledFor(logging.INFO)
