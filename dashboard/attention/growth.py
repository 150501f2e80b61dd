"""The line about tables that grow faster than they are pruned."""

from collections.abc import Iterator

from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _

from dashboard import links
from dashboard.attention import thresholds
from dashboard.table_sizes import grown
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.panels import AttentionLine, Severity, Snapshot, Step
from tasks.support.durations import spoken


@panels.attention
def growing(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Tables whose files have grown a lot within a day."""
    limits = thresholds.values(snapshot)
    for found in snapshot.once(grown):
        more = found["now"] - found["was"]
        if more < limits["grown_megabytes"] * 10**6 or 100 * more < limits["grown_percent"] * found["was"]:
            continue
        text = _("The table %(name)s has grown by %(more)s in %(age)s, to %(size)s.")
        sizes = {"more": filesizeformat(more), "size": filesizeformat(found["now"])}
        shell = "prune_tasks" if found["name"] == "tasks_task" else "prune_history"
        yield AttentionLine(
            key=f"growing:{found['name']}",
            text=text % {"name": found["name"], "age": spoken(found["seconds"]), **sizes},
            severity=Severity.SLOW,
            why=_("More is written than pruned. Let cron prune more often, or keep rows for a shorter time."),
            since=found["since"],
            size=more // 10**6,
            step=Step(
                _("See the runs of cron"), links.page("admin:ops_schedule"), command(shell, "--older-than", "7d")
            ),
            permission="tasks.view_commandrun",
        )
