"""`run_pattern`: run one pattern of the lab, or all patterns under the same load."""

from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial

from django.core.management.base import CommandParser

from dashboard.lab import charts, conclusions, runner
from dashboard.lab.conclusions import Case
from dashboard.lab.forkserver import Forkserver
from dashboard.lab.measure import Result
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.requests import varied
from dashboard.lab.worker import LIMITS, VARIED, Plan
from tasks.commands import OperatorCommand, Options, Report, types
from tasks.commands.base import UsageError
from tasks.commands.output import Part, ProgressLine, Table

NUMBERS = {
    "workers": "Processes that start together.",
    "items": "Rows to handle, or operations on the account.",
    "work_ms": "How long the work of each item takes.",
    "kill": "How many workers are killed with -9, at moments that the seed decides.",
    "cut": "How many sessions the server ends while their process works on.",
    "outside_lockers": "Processes of another kind that lock and change the same rows.",
    "remote_ms": "A slow call to another service for each item.",
    "seed": "The same seed, the same plan.",
    "seconds": "After which a run is ended.",
}


def whole_number(least: int, most: int, written: str) -> int:
    return types.whole_number(least, most, f"a whole number from {least} to {most}")(written)


def variation(written: str) -> tuple[str, list[int]]:
    """Parse a variation, such as `workers=1,2,4,8`."""
    name, _, values = written.replace("-", "_").partition("=")
    if name not in VARIED or not values:
        raise ArgumentTypeError(f"{written!a} is not like workers=1,2,4 or work-ms=0,5,20.")
    return name, [whole_number(*LIMITS[name], value) for value in values.split(",")]


class Command(OperatorCommand):
    help = "Run a locking pattern on rows of its own, in processes of its own, and measure what came of it."
    examples = ("double_checked --workers 8 --kill 2", "--all --items 500")
    changes_data = False

    def add_options(self, parser: CommandParser) -> None:
        names = ", ".join(PATTERNS)
        parser.add_argument("pattern", nargs="?", choices=list(PATTERNS), metavar="PATTERN", help=f"One of {names}.")
        parser.add_argument("--all", action="store_true", help="Every pattern, one after the other.")
        parser.add_argument(
            "--sweep", type=variation, metavar="NAME=N,N…", help="Vary one number, such as workers=1,2,4,8."
        )
        parser.add_argument(
            "--alongside", action="store_true", help="Even while another run is at work: the numbers of both suffer."
        )
        for name, text in NUMBERS.items():
            least, most = LIMITS[name]
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=partial(whole_number, least, most),
                default=getattr(Plan, name),
                metavar="N",
                help=f"{text} {least} to {most}, by default %(default)s.",
            )

    def run(self, options: Options) -> Report:
        names = self._names(options)
        runner.refuse_unless_allowed()
        numbers = {number: options[number] for number in NUMBERS}
        plans = [Plan(name, **numbers, alongside=options["alongside"]) for name in names]
        if options["sweep"]:
            plans = varied(plans, *options["sweep"])
        with self.signals.finishing_item(), closing(Forkserver()) as forkserver:
            results = []
            for number, plan in enumerate(plans, 1):
                if not self.signals.received:
                    label = f"{number} of {len(plans)}, {plan.pattern}" if len(plans) > 1 else ""
                    results.append(self._one(plan, label, options, forkserver))
        if len(plans) == 1:
            return Report(data=results[0].as_dict() | runs_on(names), text=report_of(results))
        cases = [Case(plan, result) for plan, result in zip(plans, results, strict=False)]
        name = options["sweep"][0] if options["sweep"] else ""
        labels = [f"{name}={getattr(plan, name)}" for plan in plans[: len(results)]] if name else []
        conclusion = charts.conclusion_of(cases, name)
        runs = [case.plan.as_dict() | case.result.as_dict() for case in cases]
        text = [*report_of(results, labels), "\n".join(conclusion)]
        return Report(data={"runs": runs, "conclusion": conclusion} | runs_on(names), text=text)

    def _names(self, options: Options) -> list[str]:
        if options["all"] == bool(options["pattern"]):
            raise UsageError("Name one PATTERN, or give --all.")
        return list(PATTERNS) if options["all"] else [options["pattern"]]

    def _one(self, plan: Plan, label: str, options: Options, forkserver: Forkserver) -> Result:
        line = ProgressLine(self.stderr, label)

        def progress(effects: int) -> bool:
            if options["verbosity"] > 0:
                line.show(effects, plan.items)
            return self.signals.received is None

        progress(0)
        try:
            return runner.run(plan, progress=progress, forkserver=forkserver).result
        finally:
            line.close()


def report_of(results: Sequence[Result], labels: Sequence[str] = ()) -> list[Part]:
    """The table, with a guarded run below its unguarded one, and the lock backends of patterns that name one."""
    rows, headings = [], conclusions.headings(results)
    has_slots = len(headings) > len(conclusions.HEADINGS)
    for result, number in zip(results, labels or [""] * len(results), strict=True):
        label = f"{result.pattern} {number}".strip()
        rows.append(conclusions.cells(label, result, has_slots=has_slots))
        if result.guarded:
            guard = PATTERNS[result.pattern].guard
            with_guard = Result.from_dict(result.guarded)
            rows.append(conclusions.cells(f"{label} with {guard}", with_guard, has_slots=has_slots))
    backends = runs_on(result.pattern for result in results).get("runs_on", {})
    notes = [f"{name} runs on: {text}" for name, text in backends.items()]
    return [Table([heading.upper() for heading in headings], rows), *(["\n".join(notes)] if notes else [])]


def runs_on(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The lock backends of these patterns; empty if none names one."""
    texts = {name: text for name in names if (text := PATTERNS[name].runs_on())}
    return {"runs_on": texts} if texts else {}
