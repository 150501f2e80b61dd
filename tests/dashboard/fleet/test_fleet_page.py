"""The page of the fleet and `fleet_status`: labels, the last known state, what needs attention, the search."""

import html
import logging
import re
import time

import pytest
from django.db import connection, transaction
from django.db.utils import IntegrityError

from dashboard import secrets
from dashboard.fleet import look
from dashboard.models import Installation
from dashboard.project import check_fleet
from tasks.models import Intervention
from tests.commands import run
from tests.dashboard.fleet.afar import TOKEN, free_port
from tests.html import flat, tabs_of
from tests.people import client_of

pytestmark = pytest.mark.django_db
PAGE, ROWS = "/admin/ops/fleet/", "/admin/dashboard/installation/"
MENU = f'href="{PAGE}"'


def rows_of(page: str) -> dict[str, str]:
    """The text of each installation's row, in the page's order."""
    found = re.findall(r'<tr id="installation-\w+".*?</tr>', flat(page), re.DOTALL)
    texts = [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", row)).split()) for row in found]
    return {text.partition(" ")[0]: text for text in texts}


def lines_of(page: str) -> list[str]:
    part = flat(page).partition('id="fleet-lines"')[2].partition("</ul>")[0]
    return [" ".join(re.sub(r"<[^>]*>", " ", line).split()) for line in part.split("<li")[1:]]


def test_the_page_shows_every_installation_worst_first(fleet):
    with free_port() as port:
        fleet("ok", "warning", "critical", "garbage", "silent", "token", down=f"http://127.0.0.1:{port}")
        began = time.monotonic()
        page = client_of("Viewers").get(PAGE).text
        assert time.monotonic() - began < 20, "nobody waits for the silent one, which takes 30 s"
    found = rows_of(page)
    assert list(found) == ["down", "garbage", "silent", "token", "critical", "warning", "ok"]
    labels = {"down": "Down", "garbage": "Nonsense", "silent": "No answer", "token": "Wrong token"}
    assert {
        name: text.removeprefix(name).strip()[: len(labels[name])] for name, text in found.items() if name in labels
    } == labels
    rate = "Done in each of the last 60 minutes; 60 a minute 60"
    assert found["ok"] == f"ok Healthy 0 0 mail 90 s 12 2 3 {rate} 2 of 3 4 0.3.0 · PG 16.4"
    assert found["critical"].startswith("critical Critical 1 2 ")
    assert "5 installations in trouble" in flat(page)


def test_what_needs_attention_is_merged_and_leads_to_the_installation(fleet, afar):
    fleet("warning", "critical")
    page = client_of("Viewers").get(PAGE).text
    texts = [line.partition("2026")[0] for line in lines_of(page)]
    wanted = [
        "critical Nobody works on payouts.",
        "critical 3 tasks of mail are stale.",
        "warning 3 tasks of mail are stale.",
    ]
    assert [wanted[at] in text for at, text in enumerate(texts)] == [True] * 3
    assert "Somebody knows this." not in page
    assert f'href="{afar.url}/admin/ops/stale/"' in page
    content = page.partition('<div id="content"')[2].partition("<!-- END Content -->")[0]
    assert content.count("<form") == 1, "the search: nothing is written from afar"


def test_the_last_known_state_stays_with_its_age(fleet, afar):
    fleet("lazy")
    assert rows_of(client_of("Viewers").get(PAGE).text)["lazy"].startswith("lazy Healthy ")
    afar.is_slow.set()
    late = rows_of(client_of("Viewers").get(PAGE).text)["lazy"]
    assert re.match(r"lazy No answer as of \d+ s ago ", late)
    assert "mail 90 s 12 2 3" in late
    afar.is_slow.clear()
    assert rows_of(client_of("Viewers").get(PAGE).text)["lazy"].startswith("lazy Healthy ")


def test_another_address_under_the_same_name_shows_nothing_of_the_first(fleet, afar):
    fleet("ok")
    client_of("Viewers").get(PAGE)
    fleet(ok=f"{afar.url}/silent")
    assert "mail" not in rows_of(client_of("Viewers").get(PAGE).text)["ok"]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("negative", "blocked_sessions"), ("bool", "blocked_sessions"), ("huge", "blocked_sessions"),
        ("nan", "oldest_seconds"), ("short", "throughput"), ("list", "database"), ("bare", "database"),
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_nonsense(fleet, kind, fault):
    fleet(kind)
    assert f"Its answer is not that of a Rowlock. ({fault})" in rows_of(client_of("Viewers").get(PAGE).text)[kind]


def test_text_from_afar_is_escaped_and_cut_and_leads_nowhere_else(fleet, afar):
    fleet("hostile")
    page = client_of("Viewers").get(PAGE).text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\nxxx" in page
    assert "<b>hostile" not in page
    assert not re.search("x{101}|y{301}", page)
    own = re.findall(r'href="(?![/?])([^"#]*)"', page.partition("<main")[2].partition("</main")[0])
    assert set(own) == {f"{afar.url}/hostile/admin/", f"{afar.url}//evil.example/"}, "a path of this very host"


def test_one_look_serves_every_tab(fleet, afar, settings):
    settings.SHARED_LOOK_SECONDS = 1.0
    fleet("ok")
    for group in ("Viewers", "Operators", "Viewers"):
        client_of(group).get(PAGE, headers={"HX-Request": "true"})
    assert len(afar.asked) == 2, "its summary and what needs attention, once"


def test_a_search_asks_all_at_once_and_opens_the_row_there(fleet, afar):
    fleet("ok", "silent")
    page = flat(client_of("Viewers").get(PAGE, {"q": "a b&c"}).text)
    found = page.partition('id="found"')[2].partition("</section>")[0]
    assert f'<a href="{afar.url}/admin/tasks/task/4711/" translate="no">Task #4711 charge · READY</a>' in found
    assert "was not searched. No answer:" in found
    assert ("/ok/api/v1/find?q=a+b%26c", f"Bearer {TOKEN}") in afar.asked
    assert client_of("Viewers").get(PAGE, {"q": "\0"}).status_code == 400
    assert client_of("Viewers").get(PAGE, {"name": "x" * 101}).status_code == 400


def test_a_part_of_a_name_filters(fleet):
    fleet("ok", "critical", "warning")
    page = client_of("Viewers").get(PAGE, {"name": "CRIT"}).text
    assert list(rows_of(page)) == ["critical"]
    assert ["critical " in line for line in lines_of(page)] == [True, True]


def test_a_tab_shows_the_installations_in_one_state(fleet):
    fleet("ok", "critical", "warning", "garbage", "token")
    client, everyone = client_of("Viewers"), ["garbage", "token", "critical", "warning", "ok"]
    shown = {"": everyone, "trouble": everyone[:3], "warning": ["warning"], "ok": ["ok"], "nonsense": everyone}
    labels = {"trouble": "In trouble", "warning": "Warning", "ok": "Healthy"}
    for state, names in shown.items():
        page = client.get(PAGE, {"state": state}).text
        assert list(rows_of(page)) == names, state
        assert tabs_of(page) == {"All": "5", "In trouble": "3", "Warning": "1", "Healthy": "1"}
        tabs = flat(page).partition('<nav class="tabs"')[2].partition("</nav>")[0]
        assert re.findall(r'aria-current="page">([^<]*?) ?<', tabs) == [labels.get(state, "All")]
    named = client.get(PAGE, {"name": "warn", "state": "trouble"}).text
    assert 'href="?name=warn&amp;state=ok"' in named, "a tab keeps the name"
    assert ("No installation is in this state" in named, "Work stands still nowhere." in named) == (True, True)


def test_after_ten_lines_the_others_are_folded_away_above_the_table(fleet, afar):
    fleet(**{f"shop{number:02}": f"{afar.url}/critical/{number}" for number in range(6)})
    page = client_of("Viewers").get(PAGE).text
    assert len(lines_of(page)) == 10
    folded = flat(page).partition('id="fleet-folded-lines"')[2].partition("</details>")[0]
    assert (folded.count("<li"), "and 2 more" in folded) == (2, True)


def test_the_menu_has_it_only_where_there_is_a_fleet(fleet):
    client = client_of("Viewers")
    assert MENU not in client.get("/admin/all/").text
    assert "No installation is configured." in client.get(PAGE).text
    Installation.objects.create(name="shop", url="https://shop.example", token=secrets.seal(TOKEN))
    assert MENU in client.get("/admin/all/").text
    Installation.objects.all().delete()
    fleet("ok")
    assert MENU in client.get("/admin/all/").text


def test_a_role_without_the_right_to_the_table_keeps_its_menu(afar):
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE ROLE rowlock_blind")
        cursor.execute("SET LOCAL ROLE rowlock_blind")
        assert not look.is_configured()
        cursor.execute("RESET ROLE")
        cursor.execute("DROP ROLE rowlock_blind")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("billing", "write it like name=https://host|token."),
        ("=https://a.example|t", "write it like"),
        ("a=ftp://a.example|t", "its address must begin with https:// or http://"),
        ("a=https://u:hidden@a.example|t", "its address must hold no user"),
        ("a=https://a.example?t=hidden|t", "its address must hold no user"),
        ("a=https://a.example:99999|t", "its address must begin"),
        ("a=https://a.example|hidden hidden", "its token is missing"),
        ("a=https://a.example|", "its token is missing"),
        ("a=https://a.example", "write it like"),
        ("b=https://b.example|t, b=https://c.example|t", "'b' is named twice"),
    ],
)
def test_a_part_of_the_setting_that_is_none_is_told_without_its_secrets(settings, text, reason):
    settings.ROWLOCK = {**settings.ROWLOCK, "FLEET": text}
    _targets, faults = look.configured()
    assert len(faults) == 1
    assert reason in faults[0]
    assert "hidden" not in faults[0]
    assert [(error.id, error.msg) for error in check_fleet()] == [("rowlock.E020", faults[0])]


class TestRows:
    def test_a_superuser_adds_edits_and_deletes_one_and_no_page_shows_its_token(self, afar):
        client = client_of(is_superuser=True)
        form = {"name": "shop", "url": f"{afar.url}/ok/", "new_token": TOKEN}
        assert client.post(f"{ROWS}add/", form).status_code == 302
        row = Installation.objects.get()
        assert (row.url, secrets.unseal(row.token)) == (f"{afar.url}/ok", TOKEN)
        assert rows_of(client.get(PAGE).text)["shop"].startswith("shop Healthy ")
        address = f"{ROWS}{row.pk}/change/"
        pages = [client.get(address).text, client.get(ROWS).text, client.get(f"{ROWS}{row.pk}/history/").text]
        assert client.post(address, {**form, "name": "store", "new_token": ""}).status_code == 302
        assert secrets.unseal(Installation.objects.get(name="store").token) == TOKEN, "an empty one keeps it"
        moved = client.post(address, {"name": "store", "url": "https://evil.example", "new_token": ""})
        assert "the stored one goes to no other host" in moved.text
        assert client.post(f"{ROWS}{row.pk}/delete/", {"post": "yes"}).status_code == 302
        assert not Installation.objects.exists()
        audit = list(Intervention.objects.order_by("id").values_list("action", "target", "actor"))
        url = f"url={afar.url}/ok"
        assert audit == [
            (f"add {url}", "installation:shop", "anna"),
            (f"edit {url}", "installation:store", "anna"),
            ("delete", "installation:store", "anna"),
        ]
        assert not any(TOKEN in text or row.token in text for text in (*pages, moved.text, str(audit)))

    def test_without_a_token_or_with_nonsense_it_is_refused(self):
        client = client_of(is_superuser=True)
        for change in ({"new_token": ""}, {"url": "gopher://x"}, {"name": "a=b"}, {"new_token": "a b"}):
            form = {"name": "shop", "url": "https://shop.example", "new_token": TOKEN, **change}
            assert 'class="errorlist"' in client.post(f"{ROWS}add/", form).text
        assert not Installation.objects.exists()

    def test_nobody_else_may(self):
        for group in ("Viewers", "Operators", "Lock administrators"):
            assert client_of(group).get(ROWS).status_code == 403
            assert client_of(group).post(f"{ROWS}add/", {}).status_code == 403

    def test_sql_cannot_store_a_token_in_plain_nor_an_address_that_is_none(self):
        good = {"name": "a", "url": "https://a.example", "token": secrets.seal(TOKEN)}
        for change in ({"token": TOKEN}, {"url": "https://u@a.example"}, {"url": "file:///x"}, {"name": "a,b"}):
            with pytest.raises(IntegrityError), connection.cursor() as cursor, transaction.atomic():
                cursor.execute(
                    "INSERT INTO dashboard_installation (name, url, token) VALUES (%(name)s, %(url)s, %(token)s)",
                    {**good, **change},
                )

    def test_a_token_that_no_key_opens_is_told(self, afar, settings):
        Installation.objects.create(name="shop", url=f"{afar.url}/ok", token=secrets.seal(TOKEN))
        before, settings.SECRET_KEY = settings.SECRET_KEY, "another key"
        assert [target.token for target in look.kept()] == [""]
        settings.SECRET_KEY_FALLBACKS = [before]
        assert [target.token for target in look.kept()] == [TOKEN]


class TestCommand:
    def test_all_is_well(self, fleet):
        fleet("ok", "warning")
        told = run("fleet_status")
        assert told.status == 0
        assert re.search(
            r"^ok +ok +0 +0 +12 +90 s +2 +3 +60.0 +2 of 3 +4 +0.3.0 +16.4 +now$", told.stdout, re.MULTILINE
        )
        assert "3 tasks of mail are stale." in told.stdout

    @pytest.mark.parametrize("kind", ["critical", "token", "silent", "garbage"])
    def test_critical_or_unknown_is_unhealthy(self, fleet, kind):
        fleet("ok", kind)
        told = run("fleet_status", "--json")
        assert told.status == 3
        assert [row["name"] for row in told.data["installations"]] == [kind, "ok"]
        assert f"{kind}" in told.stderr
        assert TOKEN not in told.stdout + told.stderr

    def test_the_json_has_all_of_it(self, fleet, afar):
        fleet("critical")
        (row,) = run("fleet_status", "--json").data["installations"]
        assert {name: row[name] for name in ("name", "url", "problem")} == {
            "name": "critical", "url": f"{afar.url}/critical", "problem": None,
        }  # fmt: skip
        assert row["summary"]["throughput"] == [60] * 60
        assert row["summary"]["queues"][0]["oldest_seconds"] == 90.5

    def test_a_fault_of_the_setting_is_unhealthy_and_no_fleet_a_failure(self, fleet, settings):
        assert run("fleet_status").status == 1
        settings.ROWLOCK = {**settings.ROWLOCK, "FLEET": "shop"}
        assert run("fleet_status").status == 3


def test_no_token_reaches_a_page_or_a_log(fleet, caplog):
    caplog.set_level(logging.DEBUG)
    with free_port() as port:
        fleet("ok", "token", "garbage", "error", "large", "redirect", "slow", down=f"http://127.0.0.1:{port}")
        page = client_of("Viewers").get(PAGE, {"q": "x"}).text
    assert TOKEN not in page + caplog.text
