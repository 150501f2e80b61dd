"""Explain why the tasks of one queue do not run: its READY and PROCESSING tasks, counted by verdict."""

from collections import defaultdict
from dataclasses import dataclass

from django.db.models import QuerySet

from tasks.diagnosis import Finding, Verdict, decide, gather, stats, verdict_of
from tasks.diagnosis.finding import STUCK, command
from tasks.diagnosis.stats import QueueNumbers
from tasks.models import HOLDS_ITS_KEY, Task

SAMPLE = 200  # rows of each kind that get a verdict
# The columns that verdicts on waiting and running tasks need.
JUDGED_BY = (
    "status", "task_path", "queue_name", "run_after", "ordering_key", "claimed_by", "started_at", "cancel_requested_at",
    "attempt", "max_attempts", "concurrency_key", "concurrency_limit", "rate_key", "rate", "period_seconds",
)  # fmt: skip
COUNT_CAP = 10_000


@dataclass(frozen=True)
class Reason:
    """One verdict: the number of judged tasks that have it, and the first one's finding and id."""

    verdict: Verdict
    number: int
    first: Finding
    task_id: int


@dataclass(frozen=True)
class Why:
    """One queue: those that may need a person come first in `reasons`, then by frequency.

    Not `is_complete`: only the first `judged` of its tasks have a verdict.
    """

    queue: QueueNumbers
    reasons: list[Reason]
    judged: int
    is_complete: bool
    command: str


def explain(queue_name: str) -> Why:
    """Judge the first tasks of the queue in the order of the claim, and those that workers hold."""
    samples = [list(kind[:SAMPLE]) for kind in kinds(queue_name)]
    tasks = {task.pk: task for sample in samples for task in sample}.values()
    facts = gather(tasks)
    by_verdict = defaultdict(list)
    for task in tasks:
        by_verdict[verdict_of(task, facts)].append(task)
    reasons = [Reason(verdict, len(of), decide(of[0], facts), of[0].pk) for verdict, of in by_verdict.items()]
    return Why(
        queue=stats.waiting(queue_name, facts.workers, cap=COUNT_CAP),
        reasons=sorted(reasons, key=lambda reason: (reason.verdict not in STUCK, -reason.number)),
        judged=len(tasks),
        is_complete=all(len(sample) < SAMPLE for sample in samples),
        command=command("run_worker", "--queue", queue_name),
    )


def kinds(queue_name: str) -> "list[QuerySet[Task]]":
    """Waiting rows without a key, unfinished ordered rows, limited rows, and running rows; each in an index's order."""
    light = Task.objects.only(*JUDGED_BY)
    queue = light.filter(queue_name=queue_name)
    return [
        queue.ready()
        .filter(ordering_key__isnull=True, concurrency_key__isnull=True)
        .order_by("-priority", "run_after", "id"),
        light.filter(pk__in=keyed(queue_name)[:SAMPLE]).order_by("ordering_key", "id"),
        light.filter(pk__in=limited(queue_name)[:SAMPLE]).order_by("concurrency_key", "-priority", "run_after", "id"),
        queue.processing().order_by("claimed_by"),
    ]


def keyed(queue_name: str) -> "QuerySet[Task, int]":
    """The ids of the unfinished tasks with a key, by key; from the index alone, whatever other queues hold."""
    unfinished = Task.objects.filter(ordering_key__isnull=False, status__in=HOLDS_ITS_KEY, queue_name=queue_name)
    return unfinished.order_by("ordering_key", "id").values_list("pk", flat=True)


def limited(queue_name: str) -> "QuerySet[Task, int]":
    """The ids of the waiting tasks with a concurrency key, by key; likewise."""
    waiting = Task.objects.ready().filter(concurrency_key__isnull=False, queue_name=queue_name)
    return waiting.order_by("concurrency_key", "queue_name", "priority", "run_after", "id").values_list("pk", flat=True)
