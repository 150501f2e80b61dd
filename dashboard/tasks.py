"""The tasks of the demo: harmless whatever their arguments, and between them every state that a task can be in."""

import time

from tasks.compat import TaskContext, task

LARGEST_NUMBER = 100_000
LONGEST_NAP_SECONDS = 3.0


@task(queue_name="demo-reports")
def count_primes(below: int) -> int:
    """How many prime numbers there are below a number (at most 100,000)."""
    below = max(0, min(below, LARGEST_NUMBER))
    composite = bytearray(below)
    for number in range(2, int(below**0.5) + 1):
        composite[number * number :: number] = b"\1" * len(composite[number * number :: number])
    return composite.count(0, 2)


@task(queue_name="demo-reports")
def nap(seconds: float) -> None:
    """Takes its time, at most three seconds."""
    time.sleep(min(max(seconds, 0.0), LONGEST_NAP_SECONDS))


@task(queue_name="demo-mail", ordering_key=lambda customer, letter: f"demo-{customer}")
def write_letter(customer: str, letter: int) -> str:
    """One of several letters to one customer, which keep their order."""
    return f"letter {letter} to {customer}"


@task(queue_name="demo-mail", takes_context=True, backoff=lambda attempt: 2.0)
def reach_busy_server(context: TaskContext) -> str:
    """Fails at its first attempt and succeeds at its second."""
    if context.attempt < 2:
        raise ConnectionError("The demo's mail server is busy.")
    return f"sent at attempt {context.attempt}"


@task(queue_name="demo-mail", max_attempts=2, backoff=lambda attempt: 1.0)
def reach_lost_server() -> None:
    """Fails at every attempt."""
    raise ConnectionError("The demo's other mail server is gone for good.")
