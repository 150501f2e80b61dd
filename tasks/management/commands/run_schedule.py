"""`run_schedule`: enqueue the task of a schedule now."""

from tasks.commands import OperatorCommand, Options, Report, audited, operator
from tasks.commands.output import said
from tasks.commands.schedules import ARGUMENT
from tasks.operations import schedules


class Command(OperatorCommand):
    help = "Enqueue the task of a schedule at once, even of one that is paused. Its next time stays as it is."
    examples = ("nightly-report", 'prune-tasks --reason "the disk is full"')
    argument = ARGUMENT

    def run(self, options: Options) -> Report:
        task_id = schedules.run_now(options["name"], operator(), **audited(options))
        text = f"Task {task_id} of schedule {options['name']} {said('enqueued', options)}."
        return Report(data={"schedule": options["name"], "task_id": task_id}, text=text)
