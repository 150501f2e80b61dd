"""`demo`: show, stop or remove the demo, kill one of its workers, or rebuild its lock chain."""

from django.core.management.base import CommandParser

from dashboard import project
from dashboard.demo import control
from dashboard.demo.control import Request
from tasks.commands import OperatorCommand, Options, Report, audited, operator

NOT_RUNNING = "The demo's director does not run. Start it: python manage.py direct_demo"


class Command(OperatorCommand):
    help = "Shows how the demo stands; stops or removes it, kills a worker of its own, builds the chain of locks anew."
    examples = ("--kill-worker", "--remove --dry-run")

    def add_options(self, parser: CommandParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--stop", action="store_true", help="End the director and everything that it started.")
        which.add_argument(
            "--remove", action="store_true", help="Stop, and delete the demo's tasks, orders and accounts."
        )
        which.add_argument("--kill-worker", action="store_true", help="SIGKILL for a worker of the demo's own.")
        which.add_argument("--chain", action="store_true", help="Let four sessions wait for each other again.")

    def run(self, options: Options) -> Report:
        project.refuse_elsewhere("The demo is made of its orders.")
        if options["stop"]:
            return self.stop(options)
        if options["remove"]:
            return self.remove(options)
        if options["kill_worker"]:
            return self.ask(Request.KILL, "a worker will be killed in a moment", options)
        if options["chain"]:
            return self.ask(Request.CHAIN, "the chain will stand in a moment", options)
        return self.status()

    def status(self) -> Report:
        director, counts = control.director(), control.preview()
        seconds = round(director.remaining_seconds) if director else None
        running = f"runs for another {seconds} s" if director else "does not run"
        data = {"running": director is not None, "ends_in_seconds": seconds, **counts}
        return Report(data=data, text=f"The director {running}. In the database: {counted(counts)}.")

    def stop(self, options: Options) -> Report:
        was_running = control.director() is not None
        if was_running and not options["dry_run"] and not control.stop(operator()):
            return Report(data={"stopped": False}, text="", failure="The director did not end in time.")
        text = "The director has ended." if was_running else "No director runs."
        return Report(data={"stopped": was_running}, text=text)

    def remove(self, options: Options) -> Report:
        if not options["dry_run"] and not control.stop(operator()):
            return Report(data={"removed": {}}, text="", failure="The director did not end; nothing was removed.")
        removed = control.remove(operator(), **audited(options))
        done = "Would be removed" if options["dry_run"] else "Removed"
        is_partly = not options["dry_run"] and control.is_anything_left()
        failure = "Some rows are held at this moment: remove again." if is_partly else ""
        return Report(data={"removed": removed}, text=f"{done}: {counted(removed)}.", failure=failure)

    def ask(self, request: Request, what: str, options: Options) -> Report:
        if control.director() is None:
            return Report(data={"asked": False}, text="", failure=NOT_RUNNING)
        asked = not options["dry_run"] and control.send_request(request, operator())
        return Report(data={"asked": asked}, text=f"The director was asked: {what}." if asked else "It would be asked.")


def counted(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in numbers.items())
