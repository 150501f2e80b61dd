"""Receivers of the framework's signals task_started and task_finished."""

import logging

from tasks.compat import FRAMEWORK, log_task_finished, log_task_started, task_finished, task_started

# The framework's own receivers, which log each successful run at INFO.
LOGS = {id(log_task_started), id(log_task_finished)}


def are_heard() -> bool:
    """True if a successful run's signals have a receiver: another than the framework's log, or that log at INFO.

    Without this check, sending the signals took a third of a worker's time when its tasks were very short.
    """
    keys = [key for signal in (task_started, task_finished) for key, *_ in signal.receivers]
    return any(receiver not in LOGS for receiver, _ in keys) or logging.getLogger(FRAMEWORK).isEnabledFor(logging.INFO)
