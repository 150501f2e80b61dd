"""`@task`, with types that know our options and our context. The decorator itself is the framework's."""

from typing import TYPE_CHECKING

from tasks import compat

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

    from tasks.framework.context import TaskContext
    from tasks.framework.declaration import PostgresTask

    P = ParamSpec("P")
    R = TypeVar("R")

    # The stubs know only the framework's own options; a backend's task class may accept more.
    @overload
    def task(function: Callable[P, R], /) -> PostgresTask[P, R]: ...
    @overload
    def task(
        *, takes_context: Literal[True], **options: Any
    ) -> Callable[[Callable[Concatenate[TaskContext, P], R]], PostgresTask[P, R]]: ...
    @overload
    def task(
        *, takes_context: Literal[False] = False, **options: Any
    ) -> Callable[[Callable[P, R]], PostgresTask[P, R]]: ...
    def task(*function: Any, **options: Any) -> Any: ...
else:
    task = compat.task
