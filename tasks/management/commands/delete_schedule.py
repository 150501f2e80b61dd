"""`delete_schedule`: remove a schedule."""

from tasks.commands import ChangeCommand
from tasks.commands.schedules import ARGUMENT
from tasks.operations import schedules


class Command(ChangeCommand):
    help = "Delete a schedule; its tasks and the record of its ticks stay. One that code declares can only be paused."
    examples = ("nightly-report", "nightly-report --dry-run")
    argument = ARGUMENT
    keys = ("schedule", "deleted")
    texts = ("Schedule {} is deleted.", "Schedule {} is not there.")
    change = staticmethod(schedules.delete)
