"""A failure as a page shows it: message, place in the code, folded traceback, and tasks of the same error."""

import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from pathlib import Path

from django.conf import settings

import tasks
from dashboard import links
from dashboard.templatetags.rowlock import told_failure
from tasks.models import Attempt, Task, TaskStatus
from tasks.support.durations import StatementTimestamp
from tasks.support.reading import one_line

PACKAGE = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")
FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)')
INSTALLED = re.compile(r"^<|[/\\](?:site-packages|dist-packages)[/\\]")
HERE = f"{settings.BASE_DIR}/"
LIBRARIES = (f"{Path(tasks.__file__).parent}/", f"{sysconfig.get_path('stdlib')}/")
NEAR = 1000  # attempts among which those of the same error are looked for
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Part:
    """Successive lines of a traceback; `frames`: how many calls within libraries they are, 0 for lines to show."""

    text: str
    frames: int = 0


@dataclass(frozen=True)
class Failure:
    """`number`: tasks that failed like this within an hour, as shown; `previous`, `next`: ids of the neighbours."""

    attempt: Attempt
    message: str
    place: str
    parts: tuple[Part, ...]
    number: str
    url: str
    worker_url: str
    previous: int | None
    next: int | None


def failure_of(task: Task, attempts: list[Attempt]) -> Failure | None:
    """The failure of the latest attempt, or None if the task is well or its attempt left no exception."""
    latest = attempts[0] if attempts else None
    if latest is None or task.status == TaskStatus.COMPLETED or not latest.exception_class:
        return None
    if latest.outcome == Attempt.Outcome.RELEASED:
        return None
    number, previous, following = neighbours(task, latest)
    name = latest.exception_class.rpartition(".")[2]
    return Failure(
        attempt=latest,
        message=message_of(latest),
        place=place_of(latest.traceback),
        parts=tuple(folded(latest.traceback)),
        number=number,
        url=links.page("admin:ops_failures") or links.tasks(statuses=("FAILED",), error=name),
        worker_url=links.worker(latest.worker_id),
        previous=previous,
        next=following,
    )


def message_of(attempt: Attempt) -> str:
    """The last line of the exception, without the module of its class."""
    return PACKAGE.sub("", one_line(told_failure(attempt)))


def is_library(file: str) -> bool:
    return bool(INSTALLED.search(file)) or file.startswith(LIBRARIES)


def place_of(traceback: str) -> str:
    """The last call in code of one's own, `shop/tasks.py:76 in charge_card`; empty without one."""
    frames = [frame for line in traceback.splitlines() if (frame := FRAME.match(line))]
    own = [frame for frame in frames if not is_library(frame["file"])]
    return f"{own[-1]['file'].removeprefix(HERE)}:{own[-1]['line']} in {own[-1]['function']}" if own else ""


def folded(traceback: str) -> Iterator[Part]:
    """The traceback in parts; calls within libraries that follow each other are one part."""
    for is_hidden, group in groupby(blocks(traceback), lambda block: block[0]):
        texts = [text for _, text in group]
        yield Part("\n".join(texts), len(texts) if is_hidden else 0)


def blocks(traceback: str) -> Iterator[tuple[bool, str]]:
    """Each call with the lines of its code, and the lines between calls; True for a call within a library."""
    block: list[str] = []
    is_hidden = False
    for line in traceback.splitlines():
        frame = FRAME.match(line)
        if block and (frame or not line.startswith("    ")):
            yield is_hidden, "\n".join(block)
            block = []
        if not block:
            is_hidden = frame is not None and is_library(frame["file"])
        block.append(line.replace(HERE, "", 1) if frame else line)
    if block:
        yield is_hidden, "\n".join(block)


def neighbours(task: Task, attempt: Attempt) -> tuple[str, int | None, int | None]:
    """The number of attempts of this function that ended with this exception within an hour, and the tasks beside it.

    Reads the latest attempts and those with ids near this one, never the whole table.
    """
    same = Attempt.objects.filter(exception_class=attempt.exception_class, task__task_path=task.task_path)
    latest = Attempt.objects.order_by("-pk").values("pk")[:NEAR]
    number = same.filter(pk__in=latest, finished_at__gt=StatementTimestamp() - HOUR).count()
    others = same.exclude(task=task).values_list("task_id", flat=True)
    before = others.filter(pk__range=(attempt.pk - NEAR, attempt.pk - 1)).order_by("-pk").first()
    after = others.filter(pk__range=(attempt.pk + 1, attempt.pk + NEAR)).order_by("pk").first()
    return f"{number}+" if number == NEAR else str(number), before, after
