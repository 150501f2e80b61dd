"""`pause_queue`: no worker claims from the queue."""

from tasks import operations
from tasks.commands import ChangeCommand, types


class Command(ChangeCommand):
    help = "Pause a queue: no worker claims from it until `resume_queue`. Tasks that run already go on."
    examples = ('mail --reason "the mail server is down"', "mail --dry-run")
    argument = ("name", types.name, "The queue.")
    keys = ("queue", "changed")
    texts = ("Queue {} is paused.", "Queue {} was paused before; nothing changed.")
    data = {"paused": True}
    change = staticmethod(operations.pause)
