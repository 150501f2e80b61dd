"""`forget_command`: expect no more runs of a command."""

from tasks.commands import ChangeCommand, types
from tasks.operations.locks import forget_command


class Command(ChangeCommand):
    help = "End the expectation that `run_locked NAME --expect-every` left: a command that is retired is not overdue."
    examples = ("nightly-report", 'nightly-report --reason "moved to another host"')
    argument = ("name", types.name, "The name that was given to `run_locked`.")
    keys = ("command", "forgotten")
    texts = ("{} is expected no more.", "{} was not expected; nothing changed.")
    change = staticmethod(forget_command)
