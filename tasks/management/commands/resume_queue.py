"""`resume_queue`: workers claim from a paused queue again."""

from tasks import operations
from tasks.commands import ChangeCommand, types


class Command(ChangeCommand):
    help = "Resume a paused queue: workers claim from it again, at once."
    examples = ("mail", 'mail --reason "the mail server is back"')
    argument = ("name", types.name, "The queue.")
    keys = ("queue", "changed")
    texts = ("Queue {} is resumed.", "Queue {} was not paused; nothing changed.")
    data = {"paused": False}
    change = staticmethod(operations.resume)
