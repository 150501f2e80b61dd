"""The lab's pages: asking for runs, their progress and numbers, comparing, and taking them away."""

import csv
import io
import re
from xml.etree import ElementTree

import pytest

from dashboard.lab import pages, requests
from dashboard.lab.requests import PRESETS_BY_NAME
from dashboard.lab.worker import Plan
from dashboard.models import LabRun
from tasks.models import Intervention, Task
from tasks.support.audit import Who
from tasks.testing import run_due
from tests import commands
from tests.people import client_of

pytestmark = pytest.mark.django_db(transaction=True)
LAB = "/admin/ops/lab/"
SVG = "{http://www.w3.org/2000/svg}"
NUMBERS = {
    "workers": 2, "items": 6, "work_ms": 0, "kill": 0, "cut": 0, "outside_lockers": 0, "remote_ms": 0, "seed": 1,
    "seconds": 60,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _allowed(settings):
    settings.ROWLOCK_LAB = True


def token_of(client) -> str:
    return re.search(r'name="token" value="([^"]+)"', client.get(LAB).text)[1]


def asked(*patterns: str, **numbers: int) -> list[LabRun]:
    """Runs that nobody has begun."""
    plans = [Plan(pattern, **{**NUMBERS, **numbers}) for pattern in patterns]
    batch = requests.request_runs(plans, "t" * 22, Who("anna", "page"))
    return list(LabRun.objects.filter(batch=batch).order_by("pk"))


@pytest.mark.parametrize(
    ("query", "commands"),
    [
        ("", ["unsafe", "double_checked"]),
        (
            "?preset=double-click",
            [f"{name} --workers=2 --items=60 --work-ms=10" for name in PRESETS_BY_NAME["double-click"].patterns],
        ),
        (
            "?preset=crowd",
            [f"{name} --items=120 --work-ms=2 --sweep=workers=1,2,4,8" for name in PRESETS_BY_NAME["crowd"].patterns],
        ),
        ("?preset=all", ["--all --items=100 --work-ms=2"]),
    ],
)
def test_the_form_tells_the_commands_that_do_the_same(query, commands):
    page = client_of("Viewers").get(LAB + query).text
    assert [
        one for one in commands if f'<code translate="no">python manage.py run_pattern {one}</code>' not in page
    ] == []


def test_a_run_that_was_asked_for_is_carried_out_and_compared():
    client = client_of("Operators")
    form = {**NUMBERS, "patterns": ["double_checked", "account_pessimistic"], "token": token_of(client)}
    answer = client.post(f"{LAB}start/", form)
    assert answer.status_code == 302
    waiting = client.get(answer.url)
    assert "Waits for its turn" in waiting.text
    run_due()
    page = client.get(answer.url)
    assert page.text.count("Clean") == 2
    assert "account_pessimistic was clean" in page.text
    assert [run.state for run in LabRun.objects.all()] == ["finished", "finished"]
    assert page.text.index("What the numbers say") < page.text.index('id="bars-title"') < page.text.index("<table")
    assert "2 workers, 6 items, 0 ms of work · " in " ".join(re.sub(r"<[^>]*>", "", page.text).split())
    markdown = client.get(f"{answer.url}&format=md").text
    assert re.search(r"\| `double_checked` \| \d+ \| 0 \| 0 \| 0 \| .* \| (clean|fits this load) \|", markdown)
    assert "PostgreSQL" in markdown
    assert "python manage.py run_pattern account_pessimistic --workers=2 --items=6 --work-ms=0\n```" in markdown
    picture = client.get(f"{answer.url}&format=svg")
    assert picture.headers["Content-Disposition"] == 'attachment; filename="lab.svg"'
    assert ElementTree.fromstring(picture.content).findtext(f"{SVG}title") == "Items a second"
    [first, _] = LabRun.objects.order_by("pk")
    detail = client.get(f"{LAB}{first.pk}/").text
    assert "6 items in" in detail
    assert "FOR NO KEY UPDATE" in detail
    assert "python manage.py run_pattern double_checked --workers=2 --items=6 --work-ms=0<" in detail


def test_a_double_click_asks_once():
    client = client_of("Operators")
    form = {**NUMBERS, "patterns": ["unsafe"], "token": token_of(client)}
    urls = {client.post(f"{LAB}start/", form).url for _ in range(2)}
    assert (len(urls), LabRun.objects.count(), Task.objects.count(), Intervention.objects.count()) == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"workers": 0}, "greater than or equal to 1"),
        ({"items": 10**6}, "less than or equal to 2000"),
        ({"patterns": ["no_such"]}, "not one of the available choices"),
        ({"vary": "workers", "values": "4"}, "at least two values"),
        ({"vary": "workers", "values": "1,99"}, "less than or equal to 12"),
        ({"vary": "items", "values": "1,2,3"}, "ask for 40 at most"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_asked_for(change, told):
    client = client_of("Operators")
    answer = client.post(f"{LAB}start/", {**NUMBERS, "token": token_of(client), **change})
    assert answer.status_code == 400
    assert told in answer.text
    assert LabRun.objects.count() == 0


def test_a_viewer_may_look_and_not_run():
    client = client_of("Viewers")
    assert "You lack the right dashboard.run_pattern" in client.get(LAB).text
    assert client.post(f"{LAB}start/", {**NUMBERS, "token": "t" * 22}).status_code == 403


def test_on_a_database_of_ones_own_it_is_off(settings):
    settings.ROWLOCK_LAB = False
    client = client_of("Operators")
    assert "set ROWLOCK_LAB=1" in client.get(LAB).text
    assert client.post(f"{LAB}start/", {**NUMBERS, "token": "t" * 22}).status_code == 403


def test_a_stopped_run_does_not_begin():
    client = client_of("Operators")
    [run] = asked("unsafe")
    client.post(f"{LAB}{run.pk}/stop/")
    client.post(f"{LAB}{run.pk}/stop/")
    run_due()
    run.refresh_from_db()
    assert (run.state, run.error) == ("failed", "It was stopped before it began.")
    assert Intervention.objects.filter(action="stop lab").count() == 1


def test_a_run_is_stopped_by_command_once():
    [asked_run] = asked("unsafe")
    assert commands.run("stop_lab_run", asked_run.pk, "--dry-run", "--json").data["requested"] is True
    assert not Intervention.objects.filter(action="stop lab").exists()
    outcome = commands.run("stop_lab_run", asked_run.pk, "--reason", "too loud", "--json")
    assert (outcome.status, outcome.data) == (0, {"run": asked_run.pk, "requested": True})
    assert commands.run("stop_lab_run", asked_run.pk, "--json").data["requested"] is False
    assert Intervention.objects.get(action="stop lab").reason == "too loud"
    asked_run.refresh_from_db()
    assert asked_run.stop_requested_at is not None
    unknown = commands.run("stop_lab_run", asked_run.pk + 1)
    assert (unknown.status, f"No lab run has the id {asked_run.pk + 1}" in unknown.stderr) == (1, True)


def test_what_a_dead_worker_left_running_is_called_failed_and_the_rest_goes_on():
    first, second = asked("double_checked", "idempotent_update")
    LabRun.objects.filter(pk=first.pk).update(state="running")
    run_due()
    first.refresh_from_db(), second.refresh_from_db()
    assert (first.state, second.state) == ("failed", "finished")
    assert "Its worker died" in first.error


def test_more_effects_than_items_are_no_progress_beyond_the_end():
    [run] = asked("unsafe", items=20)
    LabRun.objects.update(state="running", effects=28)
    for path in (f"{LAB}{run.pk}/", f"{LAB}compare/?run={run.pk}"):
        assert "28 effects on 20 items" in client_of("Viewers").get(path).text


def test_a_run_whose_task_is_gone_says_so_and_its_page_goes_on_asking():
    [run] = asked("unsafe")
    Task.objects.all().delete()
    client, address = client_of("Viewers"), f"{LAB}{run.pk}/"
    assert "Its worker is gone" in client.get(address).text
    assert client.get(address, headers={"HX-Request": "true"}).status_code == 200


def test_a_run_that_ends_while_its_page_is_made_is_not_taken_for_lost():
    """The page has read the run's row before, and reads its task after the end."""
    [run] = asked("unsafe")
    LabRun.objects.update(state="finished")
    Task.objects.all().delete()
    assert not requests.is_orphaned(run)


def test_polling_ends_with_the_run():
    client = client_of("Viewers")
    [run] = asked("idempotent_update")
    addresses = [f"{LAB}{run.pk}/", f"{LAB}compare/?batch={run.batch}"]
    assert [client.get(address, headers={"HX-Request": "true"}).status_code for address in addresses] == [200, 200]
    run_due()
    assert [client.get(address, headers={"HX-Request": "true"}).status_code for address in addresses] == [286, 286]


def test_a_sweep_is_drawn_and_taken_away():
    plans = [Plan("account_pessimistic", **{**NUMBERS, "workers": number}) for number in (1, 2)]
    batch = requests.request_runs(plans, "s" * 22, Who("anna", "page"))
    run_due()
    client = client_of("Viewers")
    page = client.get(f"{LAB}compare/?batch={batch}").text
    assert page.count('class="curve ') == 1
    assert "workers=2" in page
    taken = client.get(f"{LAB}compare/?batch={batch}&format=csv").text
    assert [row["workers"] for row in csv.DictReader(io.StringIO(taken))] == ["1", "2"]
    runs = client.get(f"{LAB}compare/?batch={batch}&format=json").json()["runs"]
    assert [(run["workers"], run["processed"]) for run in runs] == [(1, 6), (2, 6)]


def test_nonsense_in_the_address_finds_nothing():
    client = client_of("Viewers")
    for query in ("run=x", "run=-1", "run=99999999999999999999", "batch=%00", ""):
        assert "Tick runs in the lab" in client.get(f"{LAB}compare/?{query}").text
    assert client.get(f"{LAB}9999/").status_code == 404


def test_the_best_of_each_column_is_marked_among_the_clean():
    runs = asked("unsafe", "double_checked", "cache_lock")
    values = [
        {"items_per_second": 900.0, "duplicates": 3},
        {"items_per_second": 100.0, "lost_races": 5},
        {"items_per_second": 50.0, "lost_races": 1},
    ]
    for run, numbers in zip(runs, values, strict=True):  # all of one load
        run.result = {**dict.fromkeys(pages.Result.__dataclass_fields__, 0), "stopped": "", "share": {}, **numbers}
        run.result["pattern"] = run.pattern
    best = [line.best for line in pages.comparison_of(runs).lines]
    assert best[0] == frozenset()
    assert "items_per_second" in best[1] - best[2]
    assert "lost_races" in best[2] - best[1]
    assert [sorted(line.worst) for line in pages.comparison_of(runs).lines] == [
        [],
        ["lost_races"],
        ["items_per_second"],
    ]
    assert [cell.mark for cell in pages.comparison_of(runs).lines[2].cells if cell.mark] == ["worst", "best"]
    assert [line.fits for line in pages.comparison_of(runs).lines] == [False, True, False]
    other = LabRun(pk=0, pattern="account_pessimistic", plan={**runs[1].plan, "pattern": "account_pessimistic"})
    other.result = {**runs[1].result, "pattern": "account_pessimistic", "items_per_second": 60.0}
    assert [line.fits for line in pages.comparison_of([*runs, other]).lines] == [False, True, False, False]
    other.result["items_per_second"] = 160.0
    assert [line.fits for line in pages.comparison_of([*runs, other]).lines] == [False, True, False, True]
    bars = pages.comparison_of(runs).bars
    assert [(bar.label, bar.width, bar.is_unsafe, bar.is_best) for bar in bars.bars] == [
        ("unsafe", "100.0%", True, False),
        ("double_checked", "11.1%", False, True),
        ("cache_lock", "5.6%", False, False),
    ]
    assert "Not clean: unsafe." in bars.summary
    runs[1].plan["items"] = 7
    assert {line.best for line in pages.comparison_of(runs).lines} == {frozenset()}  # different loads: no best
