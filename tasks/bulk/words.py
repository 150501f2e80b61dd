"""Command lines equivalent to bulk actions."""

from tasks import durations
from tasks.bulk.instruction import Settings
from tasks.list_filter import ListFilter
from tasks.verdicts.words import command

COMMANDS = {
    "recover": ("recover_tasks",),
    "requeue": ("requeue_tasks",),
    "edit": ("edit_tasks",),
    "quarantine": ("quarantine_tasks",),
    "put_back": ("quarantine_tasks", "--undo"),
    "cancel": ("cancel_tasks",),
}


def command_of(action: str, chosen: ListFilter, settings: Settings) -> str:
    """The command line for these tasks; `recover_tasks` takes no filter, and recovers from every dead worker."""
    subject = [] if action == "recover" else filter_words(chosen)
    return command(*COMMANDS[action], *subject, *settings_words(action, settings))


def filter_words(chosen: ListFilter) -> list[str]:
    """Ids and options that select the same tasks."""
    pairs = [
        *(("--status", status) for status in chosen.statuses),
        *(("--queue", name) for name in chosen.queue_names),
        *(("--task", path) for path in chosen.task_paths),
        ("--error", chosen.error),
        ("--older-than", durations.describe(chosen.older_than) if chosen.older_than is not None else ""),
        ("--text", chosen.text),
        ("--ordering-key", chosen.ordering_key),
        ("--worker", chosen.worker_id),
    ]
    return [*map(str, chosen.ids), *(word for pair in pairs if pair[1] for word in pair)]


def settings_words(action: str, settings: Settings) -> list[str]:
    """Options for the settings of this action."""
    own: dict[str, list[tuple[str, object]]] = {
        "edit": [
            ("--set-queue", settings.queue_name),
            ("--set-priority", settings.priority),
            ("--set-run-after", settings.run_after.isoformat() if settings.run_after else None),
        ],
        "requeue": [("--spread", f"{settings.spread_minutes}m" if settings.spread_minutes else None)],
    }
    pairs = [*own.get(action, []), ("--reason", settings.reason or None)]
    words = [word for name, value in pairs if value is not None for word in (name, str(value))]
    return [*(["--force"] if settings.force and action == "requeue" else []), *words]
