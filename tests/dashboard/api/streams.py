"""Streams of the API as a client reads them."""

import contextlib
import http.client
import json
from collections.abc import Iterator


@contextlib.contextmanager
def following(port: int, secret: str, task_id: int) -> Iterator[http.client.HTTPResponse]:
    """The open stream of the task, for the holder of a token."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as opened:
        headers = {"Host": "localhost", "Authorization": f"Bearer {secret}"}
        opened.request("GET", f"/api/v1/tasks/{task_id}/events", headers=headers)
        answer = opened.getresponse()
        yield answer
        answer.close()


def next_event(answer: http.client.HTTPResponse) -> tuple[str, dict[str, object]]:
    """The name and the data of the next event; comments and the time to wait are skipped."""
    name = ""
    while line := answer.readline().decode():
        key, _, value = line.strip().partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            return name, json.loads(value)
    return "over", {}
