"""`resume_schedule`: a paused schedule ticks again, or upkeep is switched on."""

from tasks.commands import ChangeCommand
from tasks.commands.schedules import ARGUMENT
from tasks.operations import schedules


class Command(ChangeCommand):
    help = (
        "Resume a paused schedule. Times that it missed meanwhile are dealt with as its setting `missed` says. Upkeep "
        "that is off (`list_schedules`) is switched on."
    )
    examples = ("nightly-report", "prune-tasks")
    argument = ARGUMENT
    keys = ("schedule", "changed")
    texts = ("Schedule {} is resumed.", "Schedule {} was not paused; nothing changed.")
    data = {"paused": False}
    change = staticmethod(schedules.resume_or_switch_on)
