"""`stop_worker`: ask one worker to finish and stop."""

from tasks import operations
from tasks.commands import ChangeCommand, types


class Command(ChangeCommand):
    help = (
        "Ask a worker to claim nothing more, finish what it runs and stop. `queue_status` lists the ids. The command "
        "does not wait for the end."
    )
    examples = ("3f2a9c0b1d4e5f60", '3f2a9c0b1d4e5f60 --reason "new release"')
    argument = ("id", types.name, "The worker's id.")
    keys = ("worker", "requested")
    texts = ("Worker {} is asked to finish and stop.", "Worker {} has stopped or was asked before; nothing changed.")
    change = staticmethod(operations.stop_worker)
