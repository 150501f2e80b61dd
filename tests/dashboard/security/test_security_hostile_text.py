"""Whatever is stored is shown as text: on every page, in every part that refreshes itself, in every preview."""

import logging
import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client
from django.utils import timezone

from tests.commands import run
from tests.dashboard import hostile
from tests.dashboard.addresses import walk
from tests.people import person

pytestmark = pytest.mark.django_db
EVIL_TAG = re.compile(r"<(?:img src=x|svg/onload|iframe|style>body|a href=.?javascript)|<script>window", re.IGNORECASE)
EVALUATED = re.compile(r"\b1117\b")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u2028\u202a-\u202e\u2066-\u2069\ufeff]")  # all but new lines
SAY_NOTHING_STORED = {"cancel_tasks", "fleet_status"}
PLANTED = (timezone.now() - timedelta(hours=2)).isoformat()  # as the corpus has it
NOT_READ = {"logout", "password_change"}
# These start processes or ask one for something; tests of their own look at them.
NOT_PRESSED = re.compile(r"logout|demo|burst")


@pytest.fixture(autouse=True)
def planted(settings):
    settings.SHARED_LOOK_SECONDS = 0
    hostile.plant()


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(person("Lock administrators", "Account managers", username="root", is_superuser=True))
    return client


class Forms(HTMLParser):
    """The forms of a page, each as its address and its fields with one of its buttons pressed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self._open: tuple[str, dict[str, str]] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag == "form" and given.get("method", "").lower() == "post":
            self._open = (given.get("action", ""), {})
        elif self._open and tag == "input" and given.get("name"):
            self._open[1].setdefault(given["name"], given.get("value", ""))
        elif self._open and tag == "button":
            pressed = {given["name"]: given.get("value", "")} if given.get("name") else {}
            self.found.append((given.get("formaction") or self._open[0], {**self._open[1], **pressed}))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = None


def pages() -> list[str]:
    """Every address that can be read; slugs stand for actions, which are posted to."""
    found = []
    for route, name in sorted(walk()):
        if name not in NOT_READ and not re.search(r"[\^(]|<slug", route):
            found.append("/" + re.sub(r"<[^>]+>", str(hostile.ID), route))
    return found


def assert_harmless(where: str, text: str) -> None:
    evil = EVIL_TAG.search(text)
    assert evil is None, f"{where}: {text[max(0, evil.start() - 200) : evil.end() + 50]}"
    assert not EVALUATED.search(text), f"{where} evaluated a template"


def test_the_corpus_is_in_every_table():
    empty = [
        model._meta.label
        for label in hostile.APPS
        for model in apps.get_app_config(label).get_models()
        if model._meta.managed and model._meta.label not in hostile.NEVER and not model._base_manager.exists()
    ]
    assert empty == []


def test_no_page_and_no_part_of_one_takes_text_for_markup_or_tells_a_secret(client, caplog):
    """`plant` put a password into the arguments and return values of everything that has some."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM tasks_task WHERE kwargs::text LIKE '%swordfish%'")
        assert cursor.fetchone()[0] == 1
    shown = 0
    with caplog.at_level(logging.DEBUG):
        for path in pages():
            for headers in ({}, {"HX-Request": "true"}) if "/ops/" in path else ({},):
                answer = client.get(path, headers=headers)
                assert answer.status_code < 500, path
                assert "swordfish" not in answer.text, path
                if "html" in answer.headers.get("Content-Type", ""):
                    assert_harmless(path, answer.text)
                    shown += "&lt;img src=x" in answer.text
    assert shown >= 20
    logged = "".join(record.getMessage() for record in caplog.records if record.name != "django.db.backends")
    assert "swordfish" not in logged


def test_no_preview_and_no_message_takes_text_for_markup(client):
    pressed: set[tuple[str, ...]] = set()
    for path in pages():
        for address, fields in Forms(client.get(path).text).found:
            target = address.partition("?")[0] or path
            kind = (target, *sorted(fields))
            if kind in pressed or NOT_PRESSED.search(target):
                continue
            pressed.add(kind)
            answer = client.post(address or path, fields)
            assert answer.status_code < 500, (path, address, fields)
            page = answer.text + (client.get(answer.headers["Location"]).text if answer.status_code == 302 else "")
            assert_harmless(f"{path} to {address}", page)
    assert len(pressed) >= 15, pressed


@pytest.mark.parametrize(
    "words",
    [
        ("list_tasks",), ("list_tasks", "--csv"), ("show_task", hostile.ID), ("queue_status",), ("list_schedules",),
        ("show_attention",), ("show_lock_history", "--at", PLANTED, "--around", "1h"), ("fleet_status",),
        ("cancel_tasks", hostile.ID),
    ],
)  # fmt: skip
def test_no_command_hands_a_control_character_to_the_terminal(words):
    outcome = run(*words)
    assert "pwned" in outcome.stdout + outcome.stderr or words[0] in SAY_NOTHING_STORED
    assert CONTROL.findall(outcome.stdout + outcome.stderr) == []
