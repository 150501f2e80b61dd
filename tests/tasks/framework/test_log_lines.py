"""Log lines: as text, and as JSON with one object a line, the attempt that logs, and without values of rows."""

import json
import logging
import os
from contextlib import contextmanager
from contextvars import copy_context
from logging.handlers import QueueHandler, QueueListener
from queue import Queue

import environ
import pytest
from django.db import IntegrityError, connection

from dashboard import environment
from tasks.framework.log_lines import JsonFormatter, LineFormatter, RunningFilter
from tasks.support.tracing import RUNNING, Running
from tests.waiting import wait_until
from tests.web import gunicorn

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
logger = logging.getLogger("shop")


class Lines(logging.Handler):
    def __init__(self, formatter=None):
        super().__init__()
        self.setFormatter(formatter or JsonFormatter())
        self.texts = []

    def emit(self, record):
        self.texts.append(self.format(record))

    @property
    def objects(self):
        return [json.loads(text) for text in self.texts]


@contextmanager
def heard_by(handler):
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def test_a_line_outside_of_a_handler():
    lines = Lines()
    with heard_by(lines):
        logger.warning("two\nlines of %s", "é")
    [said] = lines.objects
    assert list(said) == ["time", "level", "logger", "message"]
    assert (said["level"], said["logger"], said["message"]) == ("WARNING", "shop", "two\nlines of é")
    assert said["time"].endswith("+00:00")
    assert "\n" not in lines.texts[0]


def warn_as(attempt):
    RUNNING.set(attempt)
    logger.warning("slow")


def test_a_line_of_a_handler_formatted_in_another_thread():
    lines, queue = Lines(), Queue()
    sender = QueueHandler(queue)
    sender.addFilter(RunningFilter())
    listener = QueueListener(queue, lines)
    listener.start()
    with heard_by(sender):
        copy_context().run(warn_as, Running(4711, 2, "w1", TRACE))
    listener.stop()
    [said] = lines.objects
    assert {name: said[name] for name in ("task_id", "attempt", "worker", "trace")} == {
        "task_id": 4711, "attempt": 2, "worker": "w1", "trace": TRACE[3:35]
    }  # fmt: skip


def test_text_of_others_begins_no_line_and_controls_no_terminal():
    forged = "x\n2026-11-25 12:00 INFO a login that never was\x1b[2J\r\u202e"
    shown = r"2026-11-25 12:00 INFO a login that never was\x1b[2J\r\u202e"
    lines = Lines(LineFormatter("%(levelname)s %(message)s"))
    with heard_by(lines):
        try:
            raise ValueError(forged)
        except ValueError:
            logger.exception("GET %s", forged)
    first, *others = lines.texts[0].split("\n")
    assert first == rf"ERROR GET x\n{shown}"
    assert others[0] == "  Traceback (most recent call last):"
    assert others[-2:] == ["  ValueError: x", f"  {shown}"]
    assert all(line.startswith("  ") for line in others)


@pytest.mark.django_db
def test_an_error_of_the_database_without_its_values():
    lines = Lines()
    with heard_by(lines), connection.cursor() as cursor:
        try:
            cursor.execute("INSERT INTO tasks_queue (name, recovery) VALUES (%s, 'never')", [f"secret {1}"])
        except IntegrityError:
            logger.exception("refused")
    [said] = lines.objects
    assert "tasks_queue_recovery_known" in said["traceback"]
    assert "secret 1" not in said["traceback"]


@pytest.mark.parametrize(("text", "chosen"), [("json", "json"), ("text", "text"), ("", "text")])
def test_the_setting_is_one_of_two(text, chosen, monkeypatch):
    monkeypatch.setenv("ROWLOCK_LOG_FORMAT", text)
    assert environment.log_format(environ.Env()) == chosen


def test_another_format_ends_with_one_line(monkeypatch):
    monkeypatch.setenv("ROWLOCK_LOG_FORMAT", "xml")
    with pytest.raises(SystemExit, match="'xml' is no format of log lines: set it to text or json"):
        environment.log_format(environ.Env())


def test_gunicorn_speaks_json(capfd, monkeypatch):
    monkeypatch.setenv("ROWLOCK_LOG_FORMAT", "json")
    with gunicorn(os.environ["DATABASE_URL"]) as (web, _port):
        [worker] = web.children()
        worker.kill()
        wait_until(lambda: worker not in web.children())
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert {line["logger"] for line in lines} >= {"gunicorn.error"}
