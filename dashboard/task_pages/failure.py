"""A failure as a page shows it: message, place in the code, folded traceback, and tasks of the same error."""

import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from pathlib import Path

from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

import tasks
from dashboard import links, project
from dashboard.numbers import decimal
from dashboard.templatetags.rowlock import told_failure
from tasks.models import Attempt, Task, TaskStatus
from tasks.support.durations import StatementTimestamp
from tasks.support.reading import one_line

PACKAGE = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")
FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)')
INSTALLED = re.compile(r"^<|[/\\](?:site-packages|dist-packages)[/\\]")
HERE = f"{project.home()}/"
LIBRARIES = (f"{Path(tasks.__file__).parent}/", f"{sysconfig.get_path('stdlib')}/")
MOST = 1000  # attempts that are counted
RECENTLY = (
    (timedelta(hours=1), gettext_lazy("%(number)s this hour")),
    (timedelta(days=7), gettext_lazy("%(number)s in 7 days")),
)


@dataclass(frozen=True)
class Part:
    """Successive lines of a traceback; `frames`: how many calls within libraries they are, 0 for lines to show."""

    text: str
    frames: int = 0


@dataclass(frozen=True)
class Failure:
    """`often`: how often a task failed like this lately; `previous`, `next`: the tasks beside it.

    Old attempts may have no fingerprint by which others are found: then `often` and `url` are empty.
    """

    attempt: Attempt
    message: str
    place: str
    parts: tuple[Part, ...]
    often: str
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
    key = latest.fingerprint.partition(" ")[0]
    previous, following = neighbours(task, latest) if key else (None, None)
    return Failure(
        attempt=latest,
        message=message_of(latest),
        place=place_of(latest.traceback),
        parts=tuple(folded(latest.traceback)),
        often=often(latest.fingerprint) if key else "",
        url=links.page("admin:ops_failure", key) if key else "",
        worker_url=links.worker(latest.worker_id),
        previous=previous,
        next=following,
    )


def message_of(attempt: Attempt) -> str:
    """The exception's last line without its module, or the outcome of an attempt without a traceback."""
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


def often(fingerprint: str) -> str:
    """The number of attempts that failed like this within an hour, or within the shortest time that has some."""
    same = Attempt.objects.filter(fingerprint=fingerprint)
    for time, text in RECENTLY:
        number = same.filter(finished_at__gt=StatementTimestamp() - time)[:MOST].count()
        if number:
            return f"\u00d7 {text % {'number': decimal(number) + ('+' if number == MOST else '')}}"
    return _("Attempts that failed like this")


def neighbours(task: Task, attempt: Attempt) -> tuple[int | None, int | None]:
    """The tasks that failed like this before and after it."""
    others = Attempt.objects.filter(fingerprint=attempt.fingerprint).exclude(task=task)
    at, pk = attempt.finished_at, attempt.pk  # one statement writes the attempts of a batch with one time
    before = others.filter(Q(finished_at__lt=at) | Q(finished_at=at, pk__lt=pk)).order_by("-finished_at", "-pk")
    after = others.filter(Q(finished_at__gt=at) | Q(finished_at=at, pk__gt=pk)).order_by("finished_at", "pk")
    previous, following = (found.values_list("task_id", flat=True).first() for found in (before, after))
    return previous, following
