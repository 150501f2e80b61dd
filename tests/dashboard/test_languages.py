"""The second language: complete, compiled as it is written, right in its plurals, and chosen by browser or person."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polib
import pytest
from django.test import Client
from django.utils import translation
from django.utils.translation import gettext, ngettext
from django.utils.translation.template import templatize

from dashboard import charts
from dashboard.numbers import decimal, milliseconds
from orders.models import Account
from tasks.support.durations import spoken
from tests.orders import orders
from tests.people import client_of
from tests.tasks import rows

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dashboard/locale/ru/LC_MESSAGES"
RUSSIAN = polib.pofile(str(FOLDER / "django.po"))
HOLES = re.compile(r"%\(\w+\)[.0-9]*[sdf]|%[sd]|\{\w*\}|</?\w+>")
MARKERS = {"_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy"}
# What Django makes of a template for xgettext: calls with the texts as Python writes them.
MARKED = re.compile(r"""\b(?:_|n?gettext)\(u?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def test_every_text_is_translated_and_none_is_a_guess():
    assert [entry.msgid for entry in RUSSIAN if not entry.translated() or entry.fuzzy or entry.obsolete] == []


def texts_of_code(source: Path) -> Iterator[str]:
    """The first argument of every call that marks a text."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in MARKERS and isinstance(node.args[0].value, str):
                yield node.args[0].value


def texts_of_template(source: Path) -> Iterator[str]:
    for text in MARKED.findall(templatize(source.read_text())):
        yield ast.literal_eval(text)


def test_every_marked_text_of_code_and_templates_is_in_the_catalogue():
    """Found without GNU gettext; docs/translating.md says how to take in what is missing."""
    known = {entry.msgid for entry in RUSSIAN}
    code = [path for app in ("dashboard", "orders", "tasks") for path in (ROOT / app).rglob("*.py")]
    missing = {f"{source.relative_to(ROOT)}: {text}" for source in code for text in texts_of_code(source)}
    templates = list((ROOT / "templates").rglob("*.html"))
    missing |= {f"{source.relative_to(ROOT)}: {text}" for source in templates for text in texts_of_template(source)}
    assert len(missing) > 900
    assert sorted(line for line in missing if line.partition(": ")[2] not in known) == []


def test_what_is_compiled_is_what_is_written():
    compiled = polib.mofile(str(FOLDER / "django.mo"))
    told = {(entry.msgctxt, entry.msgid): (entry.msgstr, entry.msgstr_plural) for entry in compiled}
    assert told == {(entry.msgctxt, entry.msgid): (entry.msgstr, entry.msgstr_plural) for entry in RUSSIAN}


def test_a_translation_has_the_holes_of_its_text():
    for entry in RUSSIAN:
        holes = set(HOLES.findall(entry.msgid + entry.msgid_plural))
        for text in filter(None, [entry.msgstr, *entry.msgstr_plural.values()]):
            assert set(HOLES.findall(text)) == holes, entry.msgid
        if entry.msgid_plural:
            assert len(entry.msgstr_plural) == 4, entry.msgid


def test_plurals_are_those_of_the_language():
    with translation.override("ru"):
        told = [ngettext("%(n)d worker", "%(n)d workers", n) % {"n": n} for n in (5, 11, 21, 22)]
    assert told == ["5 исполнителей", "11 исполнителей", "21 исполнитель", "22 исполнителя"]


@pytest.fixture
def russian() -> Client:
    client = client_of("Operators")
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "ru,en;q=0.5"
    return client


@pytest.mark.django_db
def test_a_page_speaks_the_browsers_language_and_leaves_tokens_and_commands_alone(russian):
    task = rows.failed()
    page = russian.get(f"/admin/tasks/task/{task.pk}/")
    assert '<html lang="ru"' in page.text
    assert "после 5 попыток" in page.text
    assert "после 1 попытки" in russian.get(f"/admin/tasks/task/{rows.failed(attempt=1).pk}/").text
    assert 'translate="no">FAILED<' in page.text.replace(' class="status"', "")
    assert f"requeue_tasks {task.pk}" in page.text
    assert "Rowlock" in page.text


@pytest.mark.django_db
def test_rows_and_reasons_are_named_in_the_language(russian):
    [order] = orders.placed()
    page = russian.get(f"/admin/orders/order/{order.pk}/change/").text
    assert f"Заказ {order.pk}" in page
    assert not re.search(r"\bOrder \d", page)
    with translation.override("ru"):
        assert str(Account(pk=7)) == "Счёт 7"
    task = rows.processing(rows.dead_worker())
    assert "(признан мёртвым)" in russian.get(f"/admin/tasks/task/{task.pk}/").text
    page = russian.get("/admin/ops/workers/")
    assert 'title="признан мёртвым"' in page.text
    assert "convicted" not in page.text


@pytest.mark.django_db
def test_a_person_chooses_and_the_choice_is_kept_in_a_cookie():
    client = client_of("Viewers")
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"
    answer = client.post("/admin/language/", {"language": "ru", "next": "/admin/ops/locks/?a=1"})
    assert answer.headers["Location"] == "/admin/ops/locks/?a=1"
    cookie = answer.cookies["django_language"]
    assert (cookie.value, cookie["httponly"], cookie["samesite"]) == ("ru", True, "Lax")
    assert '<html lang="ru"' in client.get("/admin/ops/locks/").text


def test_decimals_have_the_sign_of_the_language():
    with translation.override("ru"):
        told = [decimal(1234.56, 1), milliseconds(12.3), charts.written(2.5), spoken(0.0025)]
    assert [text.split(" ")[0] for text in told] == ["1\xa0234,6", "12,3", "2,5", "2,5"]


def test_no_sentence_writes_a_decimal_itself():
    assert [entry.msgid for entry in RUSSIAN if re.search(r"%\(\w+\)[.0-9]*f", entry.msgid)] == []


@pytest.mark.django_db
def test_the_choice_leads_nowhere_else():
    answer = Client().post("/admin/language/", {"language": "ru", "next": "https://evil.example/"})
    assert "evil" not in answer.headers["Location"]


@pytest.mark.django_db
def test_the_login_speaks_it_too():
    page = Client(headers={"Accept-Language": "ru"}).get("/admin/login/").text
    assert '<html lang="ru"' in page
    assert "Войти" in page


def test_commands_speak_english_whatever_the_shell_speaks():
    environment = {**os.environ, "LANG": "ru_RU.UTF-8", "LC_ALL": "C.UTF-8", "LANGUAGE": "ru"}
    told = subprocess.run(
        [sys.executable, "manage.py", "queue_status", "--help"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    ).stdout
    assert "queue" in told
    assert not re.search(r"[\u0400-\u04ff]", told)


def test_texts_that_are_no_words_stay():
    with translation.override("ru"):
        assert gettext("Rowlock") == "Rowlock"
