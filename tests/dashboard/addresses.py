"""Every address of the site, who may read it and who may post to it: what the matrix of rights is held against.

An address that is missing here fails the matrix. Add it with the narrowest set of roles that can do its work.
"""

from collections.abc import Iterator
from typing import NamedTuple

from django.urls import URLPattern, URLResolver, get_resolver

API = "api/v1/"
ROLES = {
    "nobody": None,
    "customer": None,  # logs in and is no member of staff
    "staff": (),  # a member of staff in no group
    "viewer": ("Viewers",),
    "operator": ("Operators",),
    "lock administrator": ("Lock administrators",),
    "account manager": ("Account managers",),
    "superuser": (),
}
NOBODY: frozenset[str] = frozenset()
ROOT = frozenset({"superuser"})
SIGNAL = ROOT | {"lock administrator"}
OPERATE = SIGNAL | {"operator"}
MONEY = ROOT | {"account manager"}
SEE = OPERATE | MONEY | {"viewer"}
STAFF = SEE | {"staff"}
EVERYBODY = frozenset(ROLES)


class Access(NamedTuple):
    """The roles that are let in by GET and by POST; a method that the page does not know lets nobody in."""

    get: frozenset[str]
    post: frozenset[str] = NOBODY


# By the name of the address, or by the address itself where it has none.
PAGES = {
    "": Access(EVERYBODY, EVERYBODY),  # leads on to the overview
    "favicon.ico": Access(EVERYBODY, EVERYBODY),  # leads on to the icon
    "metrics": Access(SEE),
    "docs": Access(STAFF),  # of the API
    "set_language": Access(EVERYBODY, EVERYBODY),
    "login": Access(EVERYBODY, EVERYBODY),
    "logout": Access(NOBODY, EVERYBODY),
    "index": Access(STAFF),
    "models": Access(STAFF, STAFF),
    "app_list": Access(SEE, SEE),
    "password_change": Access(STAFF, STAFF),
    "password_change_done": Access(STAFF),
    "jsi18n": Access(STAFF),
    "autocomplete": Access(NOBODY),
    "view_on_site": Access(NOBODY),
    "admin/(?P<url>.*)$": Access(NOBODY),
    "ops_alerts": Access(ROOT),
    "ops_threshold": Access(NOBODY, ROOT),
    "ops_channel_add": Access(ROOT, ROOT),
    "ops_channel": Access(ROOT, ROOT),
    "ops_channel_delete": Access(NOBODY, ROOT),
    "ops_channel_test": Access(NOBODY, ROOT),
    "ops_audit": Access(SEE),
    "ops_fleet": Access(SEE),
    "ops_lab": Access(SEE),
    "ops_lab_start": Access(NOBODY, OPERATE),
    "ops_lab_drill": Access(NOBODY, OPERATE),
    "ops_lab_compare": Access(SEE),
    "ops_lab_patterns": Access(SEE),
    "ops_lab_run": Access(SEE),
    "ops_lab_stop": Access(NOBODY, OPERATE),
    "ops_limits": Access(SEE),
    "ops_limit_set": Access(NOBODY, OPERATE),
    "ops_limit_switch": Access(NOBODY, OPERATE),
    "ops_locks": Access(SEE),
    "ops_lock_history": Access(SEE),
    "ops_signal": Access(NOBODY, SIGNAL),
    "ops_schedule": Access(SEE),
    "ops_command_run": Access(SEE),
    "ops_schedule_line": Access(SEE),
    "ops_schedule_add": Access(SEE, OPERATE),
    "ops_schedule_edit": Access(SEE, OPERATE),
    "ops_schedule_times": Access(SEE),
    "ops_schedule_switch_on": Access(NOBODY, OPERATE),
    "ops_schedule_act": Access(NOBODY, OPERATE),
    "ops_release": Access(NOBODY, SIGNAL),
    "ops_forget": Access(NOBODY, OPERATE),
    "ops_stale": Access(SEE),
    "ops_take_back": Access(NOBODY, OPERATE),
    "ops_workers": Access(SEE),
    "ops_stop_worker": Access(NOBODY, OPERATE),
    "ops_release_unstarted": Access(NOBODY, OPERATE),
    "ops_burst": Access(SEE, OPERATE),
    "ops_attention": Access(STAFF),
    "ops_acknowledge": Access(NOBODY, OPERATE),
    "ops_withdraw": Access(NOBODY, OPERATE),
    "ops_charts": Access(SEE),
    "ops_failures": Access(SEE),
    "ops_failure": Access(SEE),
    "ops_palette": Access(STAFF),
    "ops_demo": Access(SEE),
    "ops_demo_ask": Access(NOBODY, OPERATE),
    "ops_demo_remove": Access(OPERATE, OPERATE),
    "dashboard_apitoken_changelist": Access(ROOT, ROOT),
    "dashboard_apitoken_add": Access(ROOT, ROOT),
    "dashboard_apitoken_change": Access(ROOT),
    "dashboard_apitoken_delete": Access(ROOT, ROOT),
    "dashboard_apitoken_history": Access(ROOT, ROOT),
    "tasks_queue_changelist": Access(SEE, NOBODY),
    "tasks_queue_switch": Access(NOBODY, OPERATE),
    "tasks_task_changelist": Access(SEE, SEE),
    "tasks_task_change": Access(SEE, SEE),
    "tasks_task_why": Access(SEE),
    "tasks_task_archive": Access(SEE),
    "tasks_task_again": Access(NOBODY, OPERATE),
    "tasks_task_enqueue": Access(SEE, OPERATE),
    "tasks_task_action": Access(NOBODY, OPERATE),
    "tasks_task_all": Access(NOBODY, OPERATE),
    "tasks_task_save_view": Access(NOBODY, SEE),
    "tasks_task_delete_view": Access(NOBODY, SEE),
    "tasks_task_runs": Access(SEE),
    "tasks_task_run": Access(SEE),
    "tasks_task_run_stop": Access(NOBODY, OPERATE),
    "orders_account_change": Access(SEE, SEE),  # shows the account; money moves at the next address
    "orders_account_move": Access(NOBODY, MONEY),
    "orders_order_add": Access(ROOT, ROOT),
    "orders_order_change": Access(SEE, ROOT),
    "orders_order_delete": Access(ROOT, ROOT),
    "orders_order_resolve": Access(NOBODY, OPERATE),
    "orders_order_run": Access(OPERATE, OPERATE),
    "orders_order_watch": Access(SEE),
}
# Pages of the stock admin, by the model: whoever sees the table sees lists and rows; nobody edits rows by hand.
STOCK = {
    "changelist": Access(SEE, SEE),
    "history": Access(SEE, SEE),
    "lock": Access(SEE),
    "change": Access(SEE),
    "add": Access(NOBODY),
    "delete": Access(NOBODY),
}
ROOTS_OWN = ("auth_group_", "auth_user_", "dashboard_installation_")


def expected(name: str) -> Access | None:
    """Who is let in where, or None for an address that the table does not know."""
    if name.startswith(ROOTS_OWN):
        return Access(ROOT, ROOT)
    return PAGES.get(name) or STOCK.get(name.rpartition("_")[2] if name.startswith(("tasks_", "orders_")) else "")


def walk(patterns: list[URLPattern | URLResolver] | None = None, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each address as its route and its name, or the route again where it has none.

    Those of the API that ask for a token have a matrix of their own: tests/dashboard/api/test_matrix.py.
    """
    for entry in get_resolver().url_patterns if patterns is None else patterns:
        route = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from walk(entry.url_patterns, route)
        elif prefix == API and entry.name not in PAGES:
            continue
        elif entry.name or not route.endswith("/<path:object_id>/"):  # leads on to the page of the row
            yield route, entry.name or route
