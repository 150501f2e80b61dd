"""`list_schedules`: every schedule with its next and last tick, and the upkeep that is off."""

from datetime import datetime

from tasks.commands import OperatorCommand, Options, Report
from tasks.commands.output import Part, Table
from tasks.commands.schedules import as_json, at_local
from tasks.models import Schedule
from tasks.operations import schedules

HEADINGS = ("NAME", "WHEN", "NEXT", "LAST", "STATE")


class Command(OperatorCommand):
    help = (
        "List the schedules: when each runs next, what became of its last time, and why it stands still. Upkeep that "
        "is off is listed too; `resume_schedule NAME` switches it on."
    )
    examples = ("", "--json")
    changes_data = False
    is_watchable = True

    def run(self, options: Options) -> Report:
        rows, now, offers = list(Schedule.objects.order_by("name")), schedules.now(), schedules.offers()
        found = [as_json(row, now) for row in rows]
        cells = [(row.name, row.recurrence.describe(), at_local(row.next_at), *told(row, now)) for row in rows]
        cells += [(offer.name, offer.cron, None, None, "off") for offer in offers]
        text: Part = Table(HEADINGS, cells) if cells else "There is no schedule."
        return Report(data={"schedules": found, "off": [offer.name for offer in offers]}, text=text)


def told(row: Schedule, now: datetime) -> tuple[str | None, str]:
    """The last tick, and the state with its reason."""
    last = f"{at_local(row.last_at)} {row.last_outcome}" if row.last_at else None
    if row.held_by_task_id:
        last = f"{last} (task {row.held_by_task_id} was unfinished)"
    words = [f"overridden: {', '.join(row.overridden)}"] if row.overridden else []
    return last, "; ".join([schedules.state(row, now), *words])
