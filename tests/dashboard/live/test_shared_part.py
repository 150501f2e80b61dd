"""One rendering serves all tabs of a look: to each person what he or she may see, in his or her language."""

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
from django.template import loader
from django.test import override_settings

from dashboard.live import fragment, snapshots
from tasks.panels import STANDS_IN_SECONDS, Snapshot
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db
PART = {"HX-Request": "true"}
ADDRESSES = ("/admin/", "/admin/ops/charts/", "/admin/ops/locks/", "/admin/ops/stale/", "/admin/ops/workers/")
TOKEN = b"csrfmiddlewaretoken"


@pytest.fixture(autouse=True)
def one_look() -> Iterator[None]:
    snapshots.forget()
    with override_settings(SHARED_LOOK_SECONDS=60):
        yield
    snapshots.forget()


def part(address: str, *groups: str, username: str = "anna", **headers: str) -> bytes:
    return client_of(*groups, username=username).get(address, headers={**PART, **headers}).content


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The templates that were rendered for parts."""
    names: list[str] = []

    def render(template: str, *arguments: object) -> str:
        names.append(template)
        return loader.render_to_string(template, *arguments)

    monkeypatch.setattr(fragment, "render_to_string", render)
    return names


@pytest.mark.parametrize("address", ADDRESSES)
def test_two_people_with_the_same_rights_share_one_rendering(address: str, rendered: list[str]) -> None:
    seen = [part(address, "Operators", username=username) for username in ("anna", "boris")]
    assert len(seen[0]) == len(seen[1]) > 0  # but for the token, which is as long
    assert len(rendered) == 1


def test_another_right_is_another_part() -> None:
    rows.processing(rows.dead_worker())
    seen = part("/admin/ops/stale/", "Viewers")
    assert b"You lack the right" in seen
    assert b"You lack the right" not in part("/admin/ops/stale/", "Operators", username="boris")
    assert part("/admin/ops/stale/", "Viewers", username="carla").count(b"You lack") == seen.count(b"You lack")


def test_each_language_has_its_own(rendered: list[str]) -> None:
    english, russian = (part("/admin/", "Viewers", **{"Accept-Language": name}) for name in ("en", "ru"))
    assert english != russian
    assert len(rendered) == 2


def test_each_tab_gets_its_own_token_against_forged_requests(rendered: list[str]) -> None:
    rows.processing(rows.dead_worker())
    tokens = set()
    for username in ("anna", "boris"):
        client = client_of("Operators", username=username)
        client.handler.enforce_csrf_checks = True
        answer = client.get("/admin/ops/stale/", headers=PART)
        assert TOKEN in answer.content
        assert fragment.TOKEN_STANDS_HERE.encode() not in answer.content
        token = answer.content.partition(TOKEN + b'" value="')[2].partition(b'"')[0].decode()
        assert client.post("/admin/ops/stale/take-back/", {"csrfmiddlewaretoken": token}).status_code == 400
        assert client.post("/admin/ops/stale/take-back/", {"csrfmiddlewaretoken": "forged"}).status_code == 403
        tokens.add(token)
    assert (len(rendered), len(tokens)) == (1, 2)


def test_after_a_change_by_a_person_the_part_is_made_anew(rendered: list[str]) -> None:
    part("/admin/ops/workers/", "Viewers")
    snapshots.forget()
    part("/admin/ops/workers/", "Viewers")
    assert len(rendered) == 2


def test_while_the_next_look_is_being_made_the_last_one_stands_in() -> None:
    def nobody() -> str:
        raise AssertionError("who does not wait for the look makes nothing of it")

    last = Snapshot()
    assert last.made("part", lambda: "the last") == "the last"
    snapshot = Snapshot(before=last)
    with busy(snapshot):
        assert snapshot.made("part", nobody) == "the last"
    assert snapshot.made("part", lambda: "the next") == "the next"


def test_what_is_made_already_waits_for_no_other_part() -> None:
    snapshot, answers = Snapshot(), list[str]()
    snapshot.made("part", lambda: "made")
    tab = threading.Thread(target=lambda: answers.append(snapshot.made("part", lambda: "made again")))
    with busy(snapshot):
        tab.start()
        tab.join(5)
        assert answers == ["made"]


def test_it_does_not_stand_in_for_long() -> None:
    last = Snapshot()
    last.made("part", lambda: "the last")
    snapshot, answers = Snapshot(began=time.monotonic() - STANDS_IN_SECONDS, before=last), list[str]()
    with busy(snapshot):
        tab = threading.Thread(target=lambda: answers.append(snapshot.made("part", lambda: "the next")))
        tab.start()
    tab.join(20)
    assert answers == ["the next"]


def test_a_look_keeps_no_more_than_the_one_before_it(settings) -> None:
    settings.SHARED_LOOK_SECONDS = 1e-9
    taken = [snapshots.current() for _ in range(3)]
    assert [snapshot.before for snapshot in taken] == [None, None, taken[1]]


@contextlib.contextmanager
def busy(snapshot: Snapshot) -> Iterator[None]:
    """Another thread asks this look something."""
    is_asked, may_go = threading.Event(), threading.Event()

    def make() -> None:
        is_asked.set()
        assert may_go.wait(20)

    other = threading.Thread(target=snapshot.made, args=("something else", make))
    other.start()
    try:
        assert is_asked.wait(20)
        yield
    finally:
        may_go.set()
        other.join(20)
