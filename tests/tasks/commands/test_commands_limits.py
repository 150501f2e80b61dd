"""`configure_limit` and `configure_queue`: limits are set, kept by the audit, taken away, and refused when wrong."""

import pytest

from tasks.models import Intervention, Limit, Queue
from tests.commands import run

pytestmark = pytest.mark.django_db


def audit() -> list[tuple[str, str, str]]:
    return list(Intervention.objects.order_by("pk").values_list("action", "target", "reason"))


def nothing_is_set() -> bool:
    return not Limit.objects.exists() and not Queue.objects.exists()


def test_a_key_is_limited_paused_and_resumed():
    outcome = run("configure_limit", "bank", "--max-running", 3, "--rate", "100/m", "--reason", "quota", "--json")
    assert (outcome.status, outcome.data) == (
        0, {"key": "bank", "max_running": 3, "rate": "100/m", "changed": True},
    )  # fmt: skip
    assert run("configure_limit", "bank", "--pause", "--json").data == {"key": "bank", "paused": True, "changed": True}
    limit = Limit.objects.get()
    assert (limit.max_running, limit.rate, limit.period_seconds, limit.paused) == (3, 100, 60, True)
    assert "@" in limit.paused_by
    run("configure_limit", "bank", "--resume")
    assert audit() == [
        ("limit max_running=3 rate=100/m", "limit:bank", "quota"), ("pause", "limit:bank", ""),
        ("resume", "limit:bank", ""),
    ]  # fmt: skip


def test_what_is_not_named_stays_and_none_takes_away():
    run("configure_limit", "bank", "--max-running", 3, "--rate", "100/m")
    run("configure_limit", "bank", "--rate", "200/m")
    assert Limit.objects.values_list("max_running", "rate", "period_seconds").get() == (3, 200, 60)
    assert audit()[-1] == ("limit rate=200/m", "limit:bank", "")
    outcome = run("configure_limit", "bank", "--max-running", "none", "--rate", "none")
    assert outcome.stdout == "Limit of key bank: no number at once, no rate.\n"
    assert Limit.objects.values_list("max_running", "rate", "period_seconds").get() == (None, None, None)


def test_doing_it_again_is_nothing_to_do():
    run("configure_limit", "bank", "--max-running", 3)
    outcome = run("configure_limit", "bank", "--max-running", 3)
    assert outcome.stdout == "Limit of key bank: at most 3 at once, as before; nothing changed.\n"
    assert len(audit()) == 1


def test_a_queue_is_limited_beside_its_recovery():
    argv = ["--recovery", "ask", "--max-running", 5, "--rate", "50/d", "--json"]
    assert run("configure_queue", "mail", *argv).data == {
        "queue": "mail", "recovery": "ask", "max_running": 5, "rate": "50/d", "changed": True,
    }  # fmt: skip
    queue = Queue.objects.get()
    assert (queue.recovery, queue.max_running, queue.rate, queue.period_seconds) == ("ask", 5, 50, 86400)
    outcome = run("configure_queue", "mail", "--recovery", "ask", "--rate", "none")
    assert outcome.stdout == (
        "Recovery of queue mail is ask as before; nothing changed.\nLimit of queue mail: no rate.\n"
    )
    assert Queue.objects.get().max_running == 5


def test_a_dry_run_changes_nothing():
    assert run("configure_limit", "bank", "--pause", "--dry-run", "--json").data["changed"] is True
    assert run("configure_queue", "mail", "--max-running", 1, "--dry-run", "--json").data["changed"] is True
    assert nothing_is_set()
    assert audit() == []


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["configure_limit", "bank"], "give --max-running, --rate, --pause or --resume"),
        (["configure_queue", "mail"], "give --recovery, --max-running, --rate or --objective"),
        (["configure_limit", "bank", "--pause", "--resume"], "not allowed with"),
        (["configure_limit", "bank", "--max-running", "0"], "is not a whole number from 1 to 10000, or none"),
        (["configure_queue", "mail", "--max-running", "10001"], "is not a whole number from 1 to 10000, or none"),
        (["configure_limit", "bank", "--rate", "100"], "is not a rate: write starts and their period, like 5/s"),
        (["configure_queue", "mail", "--rate", "keep"], "is not a rate"),
        (["configure_queue", "mail", "--objective", "0s"], "is no objective: write 1s to 366d, or none"),
        (["configure_queue", "mail", "--objective", "53w"], "is no objective"),
        (["configure_limit", "", "--pause"], "must not be empty"),
    ],
)
def test_bad_input_is_a_usage_error(argv, told):
    outcome = run(*argv)
    assert outcome.status == 2
    assert told in outcome.stderr
    assert nothing_is_set()
