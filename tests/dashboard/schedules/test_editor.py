"""The editor: a schedule added and edited by hand, its next times, and what is refused and where."""

import html
import re
import shlex

import pytest

from tasks.models import Intervention, Schedule
from tasks.operations import schedules, tokens
from tasks.support.audit import Who
from tests.commands import run
from tests.dashboard.schedules.made import NOTHING, PAGE, declared, made
from tests.html import flat
from tests.people import client_of
from tests.tasks import handlers

ADD, EDIT, TIMES = f"{PAGE}add/", f"{PAGE}edit/", f"{PAGE}times/"
SUM = handlers.add.module_path
WHO = Who("ann", "page")
NEW = {"task": NOTHING, "name": "nightly", "cron": "30 2 * * *", "missed": "skip", "overlap": "skip"}

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return client_of("Operators")


def add(client, **fields: str):
    return client.post(ADD, {**NEW, "token": tokens.new_token(), **fields})


def form_of(client, name: str = "nightly") -> dict[str, str]:
    """The fields of the editor as it opens."""
    text = client.get(EDIT, {"schedule": name}).text
    text = text[text.index('<form class="confirm') :]
    fields = dict(re.findall(r'name="([\w-]+)"[^>]*? value="([^"]*)"', text))
    fields |= {name: "" for name in re.findall(r'<input type="text" name="([\w-]+)"', text) if name not in fields}
    fields |= re.findall(r'<textarea name="([\w-]+)"[^>]*>\s*(.*?)</textarea>', text, re.DOTALL)
    options = re.findall(r'<select name="(\w+)".*?<option value="(\w+)" selected', text, re.DOTALL)
    kept = {name: html.unescape(value) for name, value in (fields | dict(options)).items()}
    return {name: value for name, value in kept.items() if name != "check"}


def save(client, name: str = "nightly", **changes: str):
    return client.post(EDIT, {**form_of(client, name), **changes})


def faults(page) -> dict[str, str]:
    """What is wrong, by the field that it stands at."""
    fields = flat(page.text).split('<div class="field">')[1:]
    marked = [re.search(r'name="([\w-]+)".*?<ul class="errorlist"[^>]*><li>(.*?)</li>', text) for text in fields]
    return {found[1]: html.unescape(found[2]) for found in marked if found}


def test_a_task_is_chosen_first(operator):
    text = operator.get(ADD).text
    assert f'href="?task={NOTHING}"' in text
    assert operator.post(ADD, {"task": ""}).status_code == 400
    assert operator.get(ADD, {"task": "tasks.tasks.prune_tasks"}).status_code == 400


def test_a_schedule_is_added_once_with_its_reason(operator):
    token = tokens.new_token()
    fields = {"timezone": "Europe/Berlin", "queue_name": "reports", "priority": "7", "missed": "once", "reason": "new"}
    for _double_click in range(2):
        answer = add(operator, token=token, **fields)
        assert answer.headers["Location"] == f"{PAGE}?q=nightly"
    row = Schedule.objects.get()
    assert (row.task_path, row.cron, row.timezone, row.queue_name, row.priority, row.missed, row.overlap) == (
        NOTHING, "30 2 * * *", "Europe/Berlin", "reports", 7, "once", "skip",
    )  # fmt: skip
    assert (Intervention.objects.get().reason, Intervention.objects.get().actor) == ("new", "anna")


def test_arguments_come_from_the_signature_and_show_again(operator):
    fields = {"task": SUM, "arg-first": "1", "arg-second": "2", "cron": "", "every": "10m"}
    assert faults(add(operator, **{**fields, "arg-first": "one"}))["arg-first"].startswith("first:")
    assert add(operator, **fields).status_code == 302
    row = Schedule.objects.get()
    assert (row.args, row.every_seconds) == ([1, 2], 600)
    assert {"arg-first": "1", "arg-second": "2", "every": "10m"}.items() <= form_of(operator).items()
    save(operator, **{"arg-second": "5"})
    assert (Schedule.objects.get().args, Schedule.objects.get().every_seconds) == ([1, 5], 600)
    assert Intervention.objects.last().action == "edit args"


def test_arguments_by_name_stay_so_until_they_change(operator):
    schedules.switch_on_maintenance("prune-tasks", WHO)
    assert form_of(operator, "prune-tasks")["arg-older_than"] == "30d"
    save(operator, "prune-tasks", cron="0 4 * * *")
    assert (Schedule.objects.get().cron, Schedule.objects.get().kwargs) == ("0 4 * * *", {"older_than": "30d"})


def test_secrets_and_unknown_functions_keep_their_arguments(operator):
    made(task_path=handlers.log_in.module_path, args=["anna", "swordfish"]), made("other", task_path="app.gone")
    text = operator.get(EDIT, {"schedule": "nightly"}).text
    assert "swordfish" not in text
    assert "They stay: they have secrets" in " ".join(text.split())
    for name in ("nightly", "other"):
        assert save(operator, name, cron="0 4 * * *").status_code == 302
    assert Schedule.objects.get(pk="nightly").args == ["anna", "swordfish"]
    assert list(Schedule.objects.values_list("cron", flat=True)) == ["0 4 * * *"] * 2


def test_an_edit_changes_what_was_edited_and_nothing_else(operator):
    made(args=[{"a": None}], queue_name="reports", timezone="Europe/Berlin", missed="once")
    before = Schedule.objects.values().get()
    assert save(operator).status_code == 302
    assert (Schedule.objects.values().get(), Intervention.objects.count()) == (before, 0)
    save(operator, cron="", every="2h", ends_at="2100-01-01T00:00:00+00:00")
    after = Schedule.objects.values().get()
    changed = {key for key, value in before.items() if after[key] != value}
    assert changed == {"cron", "every_seconds", "ends_at", "next_at", "version", "edition"}


def test_what_changed_since_is_refused_with_what_is_stored_now(operator):
    made()
    form = form_of(operator)
    schedules.edit("nightly", WHO, {"cron": "0 5 * * *"}, reason="too early")
    answer = operator.post(EDIT, {**form, "cron": "0 6 * * *", "overlap": "allow"})
    assert answer.status_code == 409
    text = flat(answer.text)
    assert "<del>0 6 * * *</del><ins>0 5 * * *</ins>" in text
    assert "edit cron=0 5 * * * too early" in text
    assert 'value="0 6 * * *"' in text
    assert Schedule.objects.get().cron == "0 5 * * *"
    edition = re.search(r'name="edition" value="(\d+)"', answer.text)[1]
    assert operator.post(EDIT, {**form, "cron": "0 6 * * *", "edition": edition}).status_code == 302
    assert Schedule.objects.get().cron == "0 6 * * *"


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"cron": "61 * * * *"}, "cron", "write minute, hour, day, month and weekday"),
        ({"cron": "* * * *"}, "cron", "five fields"),
        ({"cron": "0 0 30 2 *"}, "cron", "is not a cron expression"),
        ({"cron": ""}, "cron", "either a cron expression or an interval"),
        ({"every": "10m"}, "cron", "either a cron expression or an interval"),
        ({"cron": "", "every": "10"}, "every", "write a number and its unit"),
        ({"timezone": "Europe/Berlim"}, "timezone", "did you mean Europe/Berlin"),
        ({"ends_at": "tomorrow"}, "ends_at", "2030-01-31T03:00:00+02:00"),
        ({"priority": "101"}, "priority", "-100 to 100"),
        ({"queue_name": "demo-mail"}, "queue_name", "demo"),
        ({"missed": "some"}, "missed", "not one of the available choices"),
        ({"name": "x" * 201}, "name", "200 characters"),
        ({"name": ""}, "name", "required"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(operator, fields, field, words):
    answer = add(operator, **fields)
    assert answer.status_code == 400
    assert words in faults(answer)[field]
    assert not Schedule.objects.exists()


def test_a_name_that_is_taken(operator):
    made()
    answer = add(operator)
    assert (answer.status_code, "The name nightly is taken" in answer.text) == (400, True)


def test_the_next_times_are_shown_as_they_are_typed_and_after_a_check(operator):
    typed = {"cron": "30 2 * * *", "every": "", "timezone": "Europe/Berlin", "ends_at": ""}
    part = flat(operator.get(TIMES, typed).text)
    assert "<html" not in part
    assert (part.count('<span class="wall">'), part.count("02:30:00</span>")) == (7, 5)
    assert "02:30 occurs twice on this day: it runs at the first" in part
    assert "does not exist on this day" in part
    assert "five fields" in operator.get(TIMES, {"cron": "30"}).text
    page = add(operator, check="1", **typed)
    assert page.status_code == 200
    assert "02:30 occurs twice on this day" in page.text
    assert not Schedule.objects.exists()


def test_the_command_does_the_same(operator):
    schedule = {**NEW, "task": SUM, "arg-first": "1", "arg-second": "2", "timezone": "Asia/Tokyo", "priority": "3"}
    text = operator.post(ADD, {**schedule, "check": "1", "token": tokens.new_token()}).text
    line = html.unescape(re.search(r'<p role="status">.*?<code translate="no">(.*?)</code>', text, re.DOTALL)[1])
    run(*shlex.split(line)[2:])
    row = Schedule.objects.get()
    assert (row.args, row.cron, row.timezone, row.priority) == ([1, 2], "30 2 * * *", "Asia/Tokyo", 3)
    form = {**form_of(operator), "overlap": "queue", "cron": "", "every": "90s", "check": "1"}
    text = operator.post(EDIT, form).text
    line = html.unescape(re.search(r'<p role="status">.*?<code translate="no">(.*?)</code>', text, re.DOTALL)[1])
    assert line.endswith("edit_schedule nightly --overlap queue --every 90s")
    assert "Nothing would change." in operator.post(EDIT, {**form_of(operator), "check": "1"}).text


def test_what_code_declares_says_so_and_offers_the_way_back(operator):
    declared()
    text = operator.get(EDIT, {"schedule": NOTHING}).text
    assert "Overridden here:" in text
    assert 'data-action="revert-schedule"' in text
    Schedule.objects.update(cron="0 4 * * *")
    assert "Declared in code." in operator.get(EDIT, {"schedule": NOTHING}).text


def test_viewers_look_and_do_not_save():
    made()
    viewer = client_of("Viewers")
    text = viewer.get(EDIT, {"schedule": "nightly"}).text
    assert "You lack the right tasks.edit_schedule" in text
    assert save(viewer, cron="0 4 * * *").status_code == 403
    assert add(viewer).status_code == 403


def test_a_schedule_that_is_gone_is_said(operator):
    assert operator.get(EDIT, {"schedule": "nightly"}).headers["Location"] == PAGE
    assert "There is no schedule" in operator.get(PAGE).text


def test_a_form_that_no_page_made(operator):
    assert add(operator, token="short").headers["Location"] == PAGE
    assert not Schedule.objects.exists()
