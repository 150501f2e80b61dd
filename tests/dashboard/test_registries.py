"""Links, watched rows and gauges that an app adds to the pages through `tasks.panels`."""

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from dashboard.locks import attribution
from dashboard.locks.limits import Names
from dashboard.templatetags.rowlock import target_href
from tasks import panels
from tasks.panels import Gauge, Page, Snapshot
from tests.people import client_of
from tests.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take off at its end whatever a test registers."""
    panels.load()
    for name in ("PAGES", "WATCHED", "GAUGES"):
        monkeypatch.setattr(panels, name, getattr(panels, name).copy())


def test_rows_of_a_watched_model_are_found_everywhere():
    group = Group.objects.create(name="riders")
    panels.watch(Group, "Team %(id)s")
    url = f"/admin/auth/group/{group.pk}/change/"
    [team] = [
        found
        for found in client_of(is_superuser=True).get("/admin/ops/palette/", {"q": str(group.pk)}).json()["found"]
        if found["label"].startswith("Team")
    ]
    assert team == {"label": f"Team {group.pk}", "url": url}
    assert target_href(f"group:{group.pk}") == url
    with session() as other, other.transaction():
        other.execute("SELECT FROM auth_group WHERE id = %s FOR UPDATE", [group.pk])
        [held] = [row for row in attribution.watched_rows_held(Names(connection)) if row.model is Group]
        assert (held.id, held.pid) == (group.pk, other.info.backend_pid)


def test_a_link_stands_in_the_menu_for_those_who_may_open_it():
    panels.page(Page("Teams", "admin:auth_group_changelist", "auth.view_group", "e"))
    panels.page(Page("Nowhere", "admin:no_such_page"))
    menu = client_of(is_superuser=True).get("/admin/all/").text
    assert 'href="/admin/auth/group/" data-key="e"' in menu
    assert "Nowhere" not in menu
    assert 'data-key="e"' not in client_of("Viewers", username="vera").get("/admin/all/").text


def test_gauges_are_a_section_of_the_metrics():
    @panels.gauges
    def teams(snapshot: Snapshot) -> Iterator[Gauge]:
        yield Gauge("teams", "Teams.", ("kind",), {("all",): snapshot.once(Group.objects.count)})

    Group.objects.create(name="riders")
    text = client_of(is_superuser=True).get("/metrics").text
    assert f'teams{{kind="all"}} {float(Group.objects.count())}' in text
    assert 'rowlock_scrape_errors{section="tests"} 0.0' in text
    assert 'rowlock_scrape_errors{section="orders"} 0.0' in text
