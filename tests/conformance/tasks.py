"""The tasks under test. They stay what they were declared as while TASKS changes under them."""

from typing import Any

from tasks.compat import TaskContext
from tasks.framework.decorator import task


@task
def nothing(*args: Any, **kwargs: Any) -> None:
    """Takes anything and does nothing."""


@task
async def nothing_async(*args: Any, **kwargs: Any) -> None:
    """The same as a coroutine."""


@task
def answer() -> int:
    return 42


@task
async def answer_async() -> int:
    return 42


@task
def pair() -> tuple[int, int]:
    return (1, 2)


@task
def raise_value_error() -> None:
    raise ValueError("this value is wrong")


@task
def raise_system_exit() -> None:
    raise SystemExit("it wants to leave")


@task
def raise_nested() -> None:
    raise ValueError(ValueError("one inside another"))


@task
def give_no_json() -> object:
    return object()


@task(takes_context=True)
def describe_context(context: TaskContext, *args: Any) -> list[Any]:
    result = context.task_result
    return [context.attempt, result.id, result.status, result.args, result.task.name]
