"""Functions of a project on another queue, which must exist where they are enqueued."""

from django_tasks import task


@task
def send(value: object = None) -> None: ...


@task
def unknown() -> None: ...


def deliver(value: object) -> None: ...
