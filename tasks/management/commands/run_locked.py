"""`run_locked`: run a command under a named lock, one at a time across machines."""

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser, OutputWrapper

from tasks.commands import OperatorCommand, Options, Report, UsageError, types
from tasks.commands.output import abandon, write_line
from tasks.locking.named import backends
from tasks.locking.named.holder import held_sentence, holder_data
from tasks.schedule.runner import HELD_ELSEWHERE, Outcome, Result, Sink, UnknownCommand, program, run_locked


class Command(OperatorCommand):
    help = (
        "Run a management command, or with --shell any program, if nobody else runs under the lock NAME. Exit status "
        "75 when somebody does, else that of the command. What it prints is passed on, kept, and with -v0 shown only "
        "when it fails. It is stopped when the lock is lost, and finds the lock's fence in ROWLOCK_LOCK_FENCE."
    )
    examples = ("nightly-report -- send_reports --all", "backup --shell --ttl 60 -- pg_dump -f /srv/dump shop")
    changes_data = False
    waits_for_locks = True  # the record of a run is written once its table is free

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("name", type=types.name, metavar="NAME", help="The lock, and the name of these runs.")
        parser.add_argument(
            "words", nargs="+", type=types.text, metavar="COMMAND", help="After `--`, with its arguments."
        )
        parser.add_argument(
            "--ttl", type=types.seconds, default=30.0, metavar="S",
            help="After how long a host that froze or vanished loses the lock; renewed meanwhile. Default 30.",
        )  # fmt: skip
        parser.add_argument("--wait", type=types.seconds, metavar="S", help="Wait for the lock. Default: try once.")
        parser.add_argument(
            "--expect-every", type=types.duration, metavar="D",
            help="Expect a run this often, like 5m or 1d: `queue_status` reports it when none came.",
        )  # fmt: skip
        parser.add_argument("--shell", action="store_true", help="COMMAND is a program, or one line for the shell.")
        parser.add_argument("--dry-run", action="store_true", help="Only say what would run, or who holds the lock.")

    def run(self, options: Options) -> Report:
        if not options["ttl"]:
            raise UsageError("--ttl 0 would be a lock that is over at once: give some seconds, like --ttl 30.")
        if options["expect_every"] is not None and not options["expect_every"]:
            raise UsageError("--expect-every needs some time, like 5m; `forget_command` ends an expectation.")
        try:
            result = rehearse(options) if options["dry_run"] else self.run_now(options)
        except UnknownCommand as error:
            raise UsageError(str(error)) from error
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if not options["verbosity"]:
            self.print_failure(result, options)
        return Report(
            data={
                "outcome": result.outcome,
                "exit_status": result.exit_status,
                "fence": result.fence,
                "held_by": result.holder and holder_data(result.holder),
            },
            text=f"{options['name']}: {result.outcome}.",
            failure=result.problem,
            exit_status=result.exit_status,
        )

    def run_now(self, options: Options) -> Result:
        return run_locked(
            options["name"],
            options["words"],
            sink=self.sink(options),
            is_shell=options["shell"],
            ttl=options["ttl"],
            wait=options["wait"],
            expected_every=options["expect_every"],
        )

    def sink(self, options: Options) -> Sink:
        """The destination of the command's output: passed through, only stderr with --json, nowhere with -v0."""
        if not options["verbosity"]:
            return lambda stream, chunk: None
        streams = {"stdout": self.stderr if options["json"] else self.stdout, "stderr": self.stderr}
        return lambda stream, chunk: write_bytes(streams[stream], chunk)

    def print_failure(self, result: Result, options: Options) -> None:
        """With -v0: print a failed command's output. Another holder is no failure, so then print nothing."""
        if result.problem and result.output:
            write_line(self.stderr, result.output)
        if result.outcome == Outcome.SKIPPED and not options["json"]:
            raise SystemExit(result.exit_status)

    def _print(self, report: Report, options: Options) -> bool:
        """Lower the verbosity by one: cron mails all of stdout, so a good run adds nothing to the command's output."""
        return super()._print(report, {**options, "verbosity": options["verbosity"] - 1})


def rehearse(options: Options) -> Result:
    """The expected result of `run_locked` now."""
    program(options["words"], is_shell=options["shell"])
    holder = backends.holder(options["name"])
    if holder is None or holder.is_gone:
        return Result("dry_run", 0)
    return Result(Outcome.SKIPPED, HELD_ELSEWHERE, holder=holder, problem=held_sentence(options["name"], holder))


def write_bytes(stream: OutputWrapper, chunk: bytes) -> None:
    """Pass on the command's output, byte for byte; discard it when our reader has left."""
    buffer = getattr(stream, "buffer", None)
    try:
        if buffer is None:
            stream.write(chunk.decode(errors="replace"), ending="")
        else:
            buffer.write(chunk)
            buffer.flush()
    except BrokenPipeError:
        abandon(stream)
