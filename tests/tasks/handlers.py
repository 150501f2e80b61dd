"""Task functions that the tests enqueue and run, each declared once."""

from tasks.compat import TaskContext, task


@task
def nothing(*args: object, **kwargs: object) -> None:
    """Takes anything and does nothing."""


@task
def echo(value: object = None) -> object:
    return value


@task
def add(first: int, second: int) -> int:
    return first + second


@task
async def add_async(first: int, second: int) -> int:
    return first + second


@task
def fail(message: str = "it failed") -> None:
    raise ValueError(message)


@task(max_attempts=1)
def fail_once(message: str = "it failed") -> None:
    raise ValueError(message)


@task(takes_context=True)
def attempt_number(context: TaskContext) -> int:
    return context.attempt


@task(ordering_key=lambda account, *rest: account)
def by_account(account: str, *rest: object) -> str:
    return account


@task(ordering_key=lambda account: account, ordered_by_commit=True)
def by_account_and_commit(account: str) -> str:
    return account


@task
def log_in(user: str, password: object, *tokens: object, note: object = None) -> None:
    """Takes secrets by position, by name and in its rest."""


@task(takes_context=True)
def log_in_with_context(context: TaskContext, password: str, *rest: object) -> None:
    """Takes a secret behind the context."""
