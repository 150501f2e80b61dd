"""The changes of a task as they come, until it has ended: `text/event-stream`."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.http import HttpRequest
from ninja import Router

from dashboard.api.base import Unavailable, needs
from dashboard.api.tasks import TaskId, TaskItem, existing
from dashboard.live.seats import SeatedStream
from dashboard.task_pages import VIEW
from dashboard.task_pages.saved_views import person_of
from tasks.diagnosis import decide, gather
from tasks.models import FINISHED, Task

STREAMS, STREAMS_OF_ONE = 4, 2  # at once in a web process, and of one person: each holds a thread and a session
STREAM_SECONDS, POLL_SECONDS, BEAT_SECONDS = 300.0, 0.5, 15.0
RETRY_MS = 1000  # after which a client connects again
KIND = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the latter: nginx keeps nothing back
DESCRIBED = {200: {"description": "Its changes", "content": {KIND: {"schema": {}}}}}
router = Router(tags=["Tasks"])
_guard = threading.Lock()
_open: Counter[int] = Counter()  # streams in this process, by the id of their person


def begin(user_id: int) -> None:
    """Count a stream of this person. Raises Unavailable if as many are open as may be."""
    with _guard:
        if _open.total() >= STREAMS or _open[user_id] >= STREAMS_OF_ONE:
            whose = "of yours " if _open[user_id] >= STREAMS_OF_ONE else ""
            number = STREAMS_OF_ONE if whose else STREAMS
            sentence = f"{number} streams {whose}are open in this web process: ask again later."
            raise Unavailable(sentence, Retry_After="5")
        _open[user_id] += 1


def end(user_id: int) -> None:
    with _guard:
        _open[user_id] -= 1
        if not _open[user_id]:
            del _open[user_id]


@router.get(
    "/{int:task_id}/events", response={200: None}, summary="Follow a task", openapi_extra={"responses": DESCRIBED}
)
def follow_task(request: HttpRequest, task_id: TaskId) -> Any:
    """An event `task` for each change, `end` when it has ended, `gone` if it was pruned. After five minutes the stream
    stops, and a client connects again.
    """
    needs(request, VIEW)
    existing(task_id)
    begin(user_id := person_of(request))
    stream = SeatedStream(events(task_id), content_type=KIND, headers=HEADERS)
    stream.at_end.callback(end, user_id)
    return stream


def events(task_id: int) -> Iterator[str]:
    """An event for each new version or verdict, and a comment while nothing happens.

    Empty texts in between let the web server notice that it is to stop.
    """
    ends, said, seen = time.monotonic() + STREAM_SECONDS, time.monotonic(), None
    yield f"retry: {RETRY_MS}\n\n"
    while time.monotonic() < ends:
        task = Task.objects.filter(pk=task_id).first()
        if task is None:
            yield event("gone", {"id": task_id})
            return
        finding = decide(task, gather([task]))
        state = (task.version, finding.sentence)
        if state != seen:
            item = TaskItem(**TaskItem.of(task, finding)).model_dump(mode="json")
            yield f"id: {task.version}\n{event('task', item)}"
            seen, said = state, time.monotonic()
        if task.status in FINISHED:
            yield event("end", {"id": task_id, "status": task.status})
            return
        if time.monotonic() - said > BEAT_SECONDS:
            yield ": waiting\n\n"
            said = time.monotonic()
        yield ""
        time.sleep(POLL_SECONDS)


def event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
