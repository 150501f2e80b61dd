"""Read what waits in another queue: one reader for each package, by the name that `import_tasks --from` takes.

A reader only reads, by SQL, so the other package need not be installed. `tasks/operations/importing.py` writes.
"""

from collections.abc import Callable, Iterator

from tasks.importing import celery_beat, django_q2, queues
from tasks.importing.found import Found

SOURCES: dict[str, Callable[[], Iterator[Found]]] = {
    "celery-beat": celery_beat.read,
    "django-q2": django_q2.read,
    "django-tasks-db": queues.read_django_tasks_db,
    "procrastinate": queues.read_procrastinate,
}
