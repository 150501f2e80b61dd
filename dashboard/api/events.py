"""The changes of a task as they come, until it has ended: `text/event-stream`."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from django.http import HttpRequest, StreamingHttpResponse
from ninja import Router

from dashboard.api.base import Unavailable, needs
from dashboard.api.tasks import TaskId, TaskItem, existing
from dashboard.task_pages import VIEW
from tasks.diagnosis import decide, gather
from tasks.models import FINISHED, Task

STREAMS = 4  # at once in a web process: each holds a thread and a session
STREAM_SECONDS, POLL_SECONDS, BEAT_SECONDS = 300.0, 0.5, 15.0
RETRY_MS = 1000  # after which a client connects again
KIND = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the latter: nginx keeps nothing back
DESCRIBED = {200: {"description": "Its changes", "content": {KIND: {"schema": {}}}}}
router = Router(tags=["Tasks"])
seats = threading.BoundedSemaphore(STREAMS)


class TaskStream(StreamingHttpResponse):
    """The events of a task; its seat is free again when it is closed, also if nothing was read."""

    def __init__(self, task_id: int) -> None:
        super().__init__(events(task_id), content_type=KIND, headers=HEADERS)
        self._seated = True

    def close(self) -> None:
        super().close()
        if self._seated:
            self._seated = False
            seats.release()


@router.get(
    "/{int:task_id}/events", response={200: None}, summary="Follow a task", openapi_extra={"responses": DESCRIBED}
)
def follow_task(request: HttpRequest, task_id: TaskId) -> Any:
    """An event `task` for each change, `end` when it has ended, `gone` if it was pruned. After five minutes the stream
    stops, and a client connects again.
    """
    needs(request, VIEW)
    existing(task_id)
    if not seats.acquire(blocking=False):
        raise Unavailable(f"{STREAMS} streams are open in this web process: ask again later.", Retry_After="5")
    return TaskStream(task_id)


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
