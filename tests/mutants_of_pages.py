"""The guards of pages, orders and the lab that mutation proof removes; see tests/mutants.py."""

from tests.mutants import Mutant, without

PAGE_LIMITS = "tests/dashboard/test_page_limits.py"
FLEET, FLEET_ASKED = "tests/dashboard/fleet/test_fleet_page.py", "tests/dashboard/fleet/test_asking.py"
CONDITIONS = "tests/dashboard/attention/test_conditions.py"
API_ACCESS = "tests/dashboard/api/test_access.py"
OWN_PROJECT = "tests/dashboard/test_own_project.py"
API, API_MATRIX = "tests/dashboard/api/test_operations.py", "tests/dashboard/api/test_matrix.py"
ON_DJANGO_6_0 = (
    "tests/own_admin/test_fresh_projects.py",
    "-k=django6.0-python3.12",
)
# Modules of pages that check rights with `require`.
GUARDED_PAGES = (
    *(f"dashboard.views.{name}" for name in (
        "alert_channels", "alerts", "audit", "burst", "demo", "fleet", "lab", "limits", "locks", "overview", "schedule",
        "stale", "workers")),
    *(f"dashboard.task_pages.{name}" for name in (
        "bulk", "confirmation", "detail", "enqueue", "listing", "queues")),
    *(f"dashboard.schedules.{name}" for name in ("actions", "editor")),
    "tasks.admin.pattern_admin",
    "orders.admin",
)  # fmt: skip

PAGES = [
    Mutant("fleet: no token in plain to a public address", "dashboard.fleet.asking.check_address",
           "if not is_encrypted and ip.is_global:", "if False:", (FLEET_ASKED,)),
    Mutant("fleet: what is late is cut", "dashboard.fleet.asking.Call.outcome_at", "self.wire.cut()", "pass",
           (FLEET_ASKED, "-k", "leaves_no_thread")),
    without("fleet: another host needs its token again", "dashboard.fleet.admin.InstallationForm.clean",
            " or is_elsewhere", FLEET),
    Mutant("fleet: one look for all tabs", "dashboard.fleet.look.shared", 'snapshot.made("look", partial(look, rows))',
           "look(rows)", (FLEET, "-k", "every_tab")),
    without("Django 6.0: a task's own options", "tasks.compat", ", **options}", *ON_DJANGO_6_0),
    without("limits in the lab: none leaked, none exceeded", "dashboard.lab.measure.Result.is_clean",
            " or self.leaked_slots or self.over_the_limit", "tests/dashboard/lab/test_slots.py"),
    without("limits of a page: only those that are set or in use", "dashboard.limits.KEYS",
            " AND (max_running IS NOT NULL OR rate IS NOT NULL OR paused)", "tests/dashboard/test_limits_page.py"),
    Mutant("transfer: row lock", "orders.accounts._read",
           'rows.select_for_update(of=("self",), no_key=True, nowait=nowait)', "rows",
           ("tests/orders/test_accounts.py",)),
    Mutant(
        "pages: a kept row's language", "dashboard.templatetags.rowlock.each", "get_language()", "None",
        ("tests/dashboard/test_templates.py",),
    ),
    Mutant(
        "pages: a kept row's surroundings", "dashboard.templatetags.rowlock.each", "tuple(others.items())", "()",
        ("tests/dashboard/test_templates.py",),
    ),
    without("schedules: the edition that was seen", "dashboard.schedules.editor.ScheduleForm.save",
            "edition=edition, ", "tests/dashboard/schedules/test_editor.py"),
    without("schedules: a question before Run now", "dashboard.schedules.actions.act",
            ' and not values["confirmed"]', "tests/dashboard/schedules/test_actions.py"),
    without("pages: statement timeout", "dashboard.environment.PAGE_SESSION", "-c statement_timeout=5s ", PAGE_LIMITS),
    without("pages: lock timeout", "dashboard.environment.PAGE_SESSION", "-c lock_timeout=2s ", PAGE_LIMITS),
    without("pages: limits are given to their sessions", "dashboard.environment.database_settings",
            "session_limits(env, argv), ", "tests/dashboard/test_databases.py"),
    Mutant("pages: an act leads back to pages of this site alone", "dashboard.links.back_to",
           "is_ours and url_has_allowed_host_and_scheme(wanted, allowed_hosts=None)", "wanted",
           ("tests/dashboard/overview/test_coming_back.py",)),
    without("own project: addresses lead to the site that answers", "tasks.support.addresses._found",
            ", current_app=current_site", OWN_PROJECT),
    Mutant("own project: pages bring our middleware", "dashboard.middleware.for_a_page",
           "if PAGE_MIDDLEWARE in settings.MIDDLEWARE:", "if True:", (OWN_PROJECT,)),
    Mutant("pages: seats", "dashboard.live.seats.limit", "max(1, threads - FREE_FOR_ACTIONS)", "threads",
           ("tests/dashboard/live/test_seats.py",)),
    without("API: a stop of a worker needs its right", "dashboard.api.workers.stop_worker", ", STOP", API_MATRIX),
    without("API: a run of the lab needs its right", "dashboard.api.lab.start_runs", ", RUN", API_MATRIX),
    Mutant("API: a body is an object without unknown fields", "dashboard.api.shared.Body", "forbid", "ignore",
           (API,)),
    without("API: the edition of a schedule that was seen", "dashboard.api.schedules.act",
            "edition=edition_of(request), ", API),
    Mutant("API: the summary names the part that is missing", "dashboard.api.summary.facts", "missing.append(name)",
           "pass", ("tests/dashboard/api/test_summary.py",)),
    without("attention: one line for a session", "dashboard.attention.cleanup.held_back", " and pid not in has_line",
            CONDITIONS),
    Mutant("attention: a locked table is not measured", "dashboard.table_sizes.SAMPLE", "'AccessExclusiveLock'",
           "'None'", (CONDITIONS,)),
    Mutant("attention: a locked table of thresholds hides no line", "dashboard.attention.thresholds.values",
           "if not is_too_slow(error):", "if True:", (CONDITIONS,)),
    Mutant("attention: an objective counts in a pause too", "dashboard.attention.queues.is_late",
           "if queue.objective_seconds is not None:", "if queue.objective_seconds is not None and not queue.paused:",
           ("tests/dashboard/attention/test_attention.py",)),
    Mutant("alerts: a written address is not shown again", "dashboard.views.alert_channels.ChannelForm",
           "widget=forms.PasswordInput(", "widget=forms.PasswordInput(render_value=True, attrs=",
           ("tests/dashboard/alerts/test_channels_page.py",)),
    Mutant("a signal: the backend that was seen", "dashboard.locks.signals.problem_with", 'if not backend["is_same"]:',
           "if False:", ("tests/dashboard/locks/test_locks_page.py",)),
    without("API: a token has its group's rights alone", "dashboard.api.tokens.Caller.has_perm", "is_allowed and ",
            API_ACCESS),
    Mutant("API: a key belongs to one request", "dashboard.api.idempotency.known", 'row["digest"] != digest', "False",
           (API_ACCESS,)),
    Mutant("API: a write and the answer of its key together", "dashboard.api.base.in_one_transaction",
           "idempotency.keep(request, response)", "pass", (API_ACCESS,)),
    Mutant("API: the version that was seen", "dashboard.api.tasks.act", "{task_id: edition}",
           "{task_id: existing(task_id).version}", ("tests/dashboard/api/test_tasks.py",)),
    Mutant("API: a slip in a filter's name", "dashboard.api.base.only", "if name not in names", "if False",
           ("tests/dashboard/api/test_tasks.py",)),
]  # fmt: skip
