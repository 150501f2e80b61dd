"""`pause_schedule`: a schedule enqueues nothing."""

from tasks.commands import ChangeCommand
from tasks.commands.schedules import ARGUMENT
from tasks.operations import schedules


class Command(ChangeCommand):
    help = "Pause a schedule: it enqueues nothing until `resume_schedule`. Tasks that it has enqueued go on."
    examples = ('nightly-report --reason "the archive is closed"', "nightly-report --dry-run")
    argument = ARGUMENT
    keys = ("schedule", "changed")
    texts = ("Schedule {} is paused.", "Schedule {} was paused before; nothing changed.")
    data = {"paused": True}
    change = staticmethod(schedules.pause)
