"""The cells of the public benchmark: which phases of its harness run under which load, and what their summary says.

Loads, replicas and the order of phases are those of the harness's own published sweep.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Summary = Mapping[str, Any]
PEAK, HALF = "clean", "half"
RECOVERED, PRESSED = "recovered after s, jobs lost", "jobs a second, of the time before"


@dataclass(frozen=True)
class Cell:
    """One run of one system.

    Attributes:
        phases: labels, types and lengths in multiples of `--seconds`; the warm-up goes before.
        rate: jobs a second of each replica; 0: as many as keep 4,000 waiting; None: half of what `clean` has shown.
        extra: variables for the harness and the adapter.
    """

    title: str
    phases: tuple[tuple[str, str, float], ...]
    says: Callable[[Summary], str]
    rate: int | None = 800
    workers: int = 32
    replicas: int = 1
    extra: Mapping[str, str] = field(default_factory=dict)

    def words(self, seconds: float, idle_seconds: float, half: int) -> list[str]:
        """The harness's options."""
        phases = [("warmup", "warmup", 0.5), *self.phases]
        idle = {"idle-in-tx": idle_seconds} if idle_seconds else {}
        lengths = [max(1, round(idle.get(kind, seconds * times))) for _, kind, times in phases]
        rate = half if self.rate is None else self.rate
        load = ["fixed", "--producer-rate", str(rate)] if rate else ["depth-target", "--target-depth", "4000"]
        return [
            *(f"--phase={name}={kind}:{length}" for (name, kind, _), length in zip(phases, lengths, strict=True)),
            "--producer-mode", *load, "--worker-count", str(self.workers), "--replicas", str(self.replicas),
            "--sample-every", str(max(1, min(5, round(seconds / 12)))),
        ]  # fmt: skip


def metric(summary: Summary, phase: str, name: str) -> float:
    """The median over a phase; nothing was completed where the harness has none."""
    found = summary["phases"].get(phase, {}).get("metrics", {}).get(name)
    return found["median"] if found else 0.0


def rate(summary: Summary) -> str:
    return f"{metric(summary, 'clean', 'completion_rate'):,.0f}"


def pickup(summary: Summary) -> str:
    waits = (metric(summary, "clean", f"claim_p{share}_ms") for share in (50, 95))
    return " / ".join(f"{wait:,.1f}" for wait in waits) + f" at {rate(summary)}"


def pressed(summary: Summary) -> str:
    """Jobs a second under pressure, and their share of those before it."""
    before, after = (metric(summary, phase, "completion_rate") for phase in ("before", "pressure"))
    return f"{after:,.0f} ({after / before:.0%})" if before else "0"


def recovered(summary: Summary) -> str:
    """Seconds until nine tenths of the rate before, and the harness's estimate of jobs that were lost."""
    block = summary["phases"].get("recovery", {})
    seconds, lost = block.get("chaos_recovery_time_s"), block.get("jobs_lost")
    return "not recovered" if seconds is None else f"{seconds:,.0f} s, {lost or 0:,.0f} lost (estimate)"


def under(kind: str, times: float = 1) -> tuple[tuple[str, str, float], ...]:
    return ("before", "clean", 1), ("pressure", kind, times), ("after", "clean", 1)


def chaos(*phases: tuple[str, str, float]) -> tuple[tuple[str, str, float], ...]:
    return ("baseline", "clean", 1), *phases, ("recovery", "clean", 1)


CELLS = {
    PEAK: Cell("Jobs a second, 64 at once", (("clean", "clean", 2),), rate, rate=0, workers=64),
    HALF: Cell("Pickup at half of it, ms p50 / p95", (("clean", "clean", 2),), pickup, rate=None, workers=64),
    "high-load": Cell("High load, 1,200 a second", under("high-load", 2), pressed),
    "burst": Cell("Burst, 1,800 a second", under("high-load", 2), pressed, rate=1200, workers=64),
    "idle-in-tx": Cell("Idle transaction, 800 a second", under("idle-in-tx", 2), pressed),
    "idle-in-tx-2000": Cell("Idle transaction, 2,000 a second", under("idle-in-tx", 2), pressed, rate=2000, workers=64),
    "active-readers": Cell("Four readers, 800 a second", under("active-readers", 2), pressed),
    "crash": Cell(
        "Worker killed, started again",
        chaos(("kill", "kill-worker(instance=0)", 1), ("restart", "start-worker(instance=0)", 1)),
        recovered, rate=300, replicas=2,
    ),
    "repeated-kills": Cell(
        "Worker killed every 20 s", chaos(("kills", "repeated-kill(instance=0,period=20s)", 2)), recovered,
        rate=300, replicas=2,
    ),
    "backend-kills": Cell(
        "Backends ended, twice a second", chaos(("kills", "pg-backend-kill(rate=2)", 1)), recovered, rate=600
    ),
    "pool-exhaustion": Cell(
        "300 idle connections", chaos(("exhaustion", "pool-exhaustion(idle_conns=300)", 1)), recovered, rate=600
    ),
    "postgres-restart": Cell(
        "PostgreSQL down, started again", chaos(("restart", "postgres-restart", 1)), recovered, rate=600
    ),
    "mixed-queues": Cell(
        "Four queues, 800 a second", (("clean", "clean", 2),), pickup, workers=64, extra={"BENCH_QUEUE_COUNT": "4"}
    ),
}  # fmt: skip
