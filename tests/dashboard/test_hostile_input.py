"""Input that harms elsewhere, through every door by which a task comes in: Python, SQL, the command and the form.

Either it is kept and comes back as it was, or it is refused in words, nothing is stored, and the session goes on.
"""

import html
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlencode

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction

from tasks import testing
from tasks.compat import InvalidTask
from tasks.exceptions import InvalidArguments
from tasks.models import Attempt, Queue, Task
from tasks.operations import tokens
from tasks.queue.claim import Claimer
from tasks.queue.strategies import claim
from tests.commands import run
from tests.people import client_of
from tests.tasks import handlers
from tests.tasks.handlers import echo, nothing

pytestmark = pytest.mark.django_db

ENQUEUE = "SELECT rowlock_enqueue(%s::text, %s::jsonb, queue => %s::text, ordering_key => %s::text)"
DEEP = 10_000
FORM = "/admin/tasks/task/enqueue/"
# Texts as attackers and careless programs make them; none of them harms where it is data.
NAMES = {
    "quotes": "it's \"quoted\" `so` $$and$$ ' OR 1=1; DROP TABLE tasks_task; --",
    "placeholders": "100 % %s %(name)s %% {0} {{ 7*7 }} $1 :name ?",
    "other directions": "\u202etxt.exe\u202c \u2066\u200f\u200b\ufeff",
    "emoji": "👩\u200d👩\u200d👧\u200d👦 \u2028 Ünïcode \U0010ffff",
    "shell": "$(reboot) `id` | & ; > /dev/null * ~ \\",
    "longest": "x" * 255,
}
LINES = "one\ntwo\r\nthree\ttab\x1b[31m\x7f"
TOO_LONG, NUL, HALF = "x" * 10_000, "a\0b", "a\ud800b"


class Door(NamedTuple):
    """`enqueue(path, args as JSON text, queue, key)` gives why it was refused, or an empty text."""

    name: str
    enqueue: Callable[[str, str, str, str | None], str]


def by_python(path: str, args: str, queue: str = "default", key: str | None = None) -> str:
    task = {nothing.module_path: nothing, echo.module_path: echo}[path]
    try:
        task.using(queue_name=queue, ordering_key=key).enqueue(*decoded(args))
    except (InvalidArguments, InvalidTask) as error:
        return str(error)
    return ""


def decoded(args: str) -> list[Any]:
    """The value of a JSON text, however deep it is."""
    if not args.startswith("[["):
        return json.loads(args)
    value: list[Any] = []
    for _ in range(DEEP):
        value = [value]
    return value


def by_sql(path: str, args: str, queue: str = "default", key: str | None = None) -> str:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(ENQUEUE, [path, args, queue, key])
    except (DatabaseError, UnicodeEncodeError, psycopg.DataError, ValueError) as error:
        return str(error)
    return ""


def by_command(path: str, args: str, queue: str = "default", key: str | None = None) -> str:
    options = [f"--queue={queue}", *([f"--ordering-key={key}"] if key is not None else [])]
    outcome = run("enqueue_task", path, f"--args={args}", *options, "--json")
    assert outcome.status in (0, 1, 2)
    assert "Traceback" not in outcome.stderr
    if outcome.status == 1:
        return outcome.data["error"]
    return outcome.stderr if outcome.status else ""


def by_form(path: str, args: str, queue: str = "default", key: str | None = None) -> str:
    client = client_of("Operators")
    named = {"arg-value": json.dumps(json.loads(args)[0])} if path == echo.module_path else {"args": args}
    fields = {
        "task": path,
        **named,
        "queue_name": queue,
        "ordering_key": key or "",
        "token": tokens.new_token(),
    }
    body = urlencode(fields, errors="surrogatepass")
    page = client.post(FORM, body, content_type="application/x-www-form-urlencoded")
    assert page.status_code in (302, 400)
    return "" if page.status_code == 302 else html.unescape(page.text)


DOORS = [Door("python", by_python), Door("sql", by_sql), Door("command", by_command), Door("form", by_form)]
BAD_ARGUMENTS = {
    "megabytes": (json.dumps(["x" * 1_500_000]), "t most 1000000"),
    "deep": ("[" * DEEP + "]" * DEEP, "100 levels|depth|nested|JSON"),
    "NUL": (r'["a\u0000b"]', "NUL|u0000"),
    "half a surrogate": (r'["a\ud800b"]', "surrogate|valid"),
    "NaN": ("[NaN]", "NaN|nan"),
    "infinity": ("[-Infinity]", "-?[Ii]nf"),
}


@pytest.fixture(params=DOORS, ids=lambda door: door.name)
def door(request) -> Door:
    return request.param


@pytest.mark.parametrize("kind", BAD_ARGUMENTS)
def test_what_cannot_be_kept_is_refused_in_words_and_the_session_goes_on(door, kind):
    args, words = BAD_ARGUMENTS[kind]
    refused = door.enqueue(nothing.module_path, args)
    assert re.search(words, refused)
    assert not Task.objects.exists()
    assert door.enqueue(nothing.module_path, "[]") == ""


def test_what_can_be_kept_comes_back_as_it_was(door):
    text = LINES.join(NAMES.values())
    assert door.enqueue(echo.module_path, json.dumps([{text: [text, 10**300, -0.5, None]}])) == ""
    [result] = testing.run_due()
    assert result.return_value == {text: [text, 10**300, -0.5, None]}


def test_names_are_data(door):
    for name in NAMES.values():
        assert door.enqueue(nothing.module_path, "[]", name, name) == ""
        assert [made.queue_name for made in claim(connection, Claimer("w", [name]), 5)] == [name]
    assert set(Task.objects.values_list("ordering_key", flat=True)) == set(NAMES.values())


@pytest.mark.parametrize(
    ("name", "words"),
    [(TOO_LONG, "255"), (NUL, "NUL|Null|UTF-8"), (HALF, "surrogate|UTF-8"), (LINES, "control character")],
    ids=["long", "NUL", "half", "lines"],
)
def test_names_that_cannot_be_kept_are_refused(door, name, words):
    for queue, key in ((name, None), ("default", name)):
        refused = door.enqueue(nothing.module_path, "[]", queue, key)
        assert re.search(words, refused) or is_read_as_other_text(door, name)
    assert is_read_as_other_text(door, name) or not Task.objects.exists()


def is_read_as_other_text(door: Door, name: str) -> bool:
    """Django takes half a surrogate of a form for replacement characters, which can be kept."""
    return (door.name, name) == ("form", HALF)


def test_operators_reach_queues_and_tasks_of_any_name():
    client = client_of("Operators")
    for name in NAMES.values():
        task = nothing.using(queue_name=name, ordering_key=name).enqueue()
        assert run("pause_queue", f"--reason={name}", "--", name).status == 0
        assert Queue.objects.get(name=name).paused
        assert [queue["name"] for queue in run("queue_status", "--json").data["queues"] if queue["ready"]] == [name]
        page = client.get("/admin/tasks/task/", {"queue": name})
        assert (page.status_code, f"/admin/tasks/task/{task.id}/" in page.text) == (200, True)
        assert client.get(f"/admin/tasks/task/{task.id}/").status_code == 200
        assert run("edit_tasks", f"--queue={name}", "--set-queue=plain", "--json").data["edited"] == 1
        assert run("stop_worker", "--", name).status == 1
        Task.objects.all().delete()


def test_a_task_whose_function_takes_other_arguments_today_fails_alone():
    """It was enqueued by an older version, or by a program that cannot know the function."""
    for args in ("[1, 2, 3]", "[]"):
        assert by_sql(handlers.add.module_path, args) == ""
    assert by_sql(handlers.add.module_path, "[1, 2]") == ""
    testing.run_due()
    assert Task.objects.completed().get().return_value == 3
    told = Attempt.objects.values_list("exception_class", "traceback")
    assert len(told) == 2
    assert all(kind == "builtins.TypeError" and "positional argument" in text for kind, text in told)
