"""Channels of alerts that do not take their messages."""

from collections.abc import Iterator
from typing import Any

from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import alerts, links
from dashboard.alerts.channels import OWN_TROUBLE
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.panels import AttentionLine, Severity, Snapshot, Step
from tasks.support.database import fetch

TRIES, MOST = 3, 20

# Of messages that are still tried again; one that is out of attempts is among the FAILED tasks.
# A message has neither ordering key nor limit, and only tasks without them have an index by queue.
# The channel comes from the key, because who only monitors may not read arguments.
FAILING = """
SELECT substring(task.unique_key FROM '^alert:[^:]*:[^:]*:[^:]*:(.*)$') AS channel,
    count(*) AS number, min(task.created_at) AS since
FROM tasks_task AS task
WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
  AND task.queue_name = %(queue)s::text AND task.attempt >= %(tries)s::int
  AND task.task_path = 'dashboard.tasks.send_alert'
GROUP BY channel ORDER BY since LIMIT %(most)s::int
"""


def failing() -> list[dict[str, Any]]:
    return fetch(connection, FAILING, {"queue": alerts.QUEUE, "tries": TRIES, "most": MOST})


@panels.attention
def failing_channels(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Channels whose messages have failed at least three times and wait for another try."""
    waiting = links.tasks(queue_names=(alerts.QUEUE,))
    for found in snapshot.once(failing):
        text = ngettext(
            "The alert channel %(name)s does not take %(number)d message.",
            "The alert channel %(name)s does not take %(number)d messages.",
            found["number"],
        )
        yield AttentionLine(
            key=f"{OWN_TROUBLE}:{found['channel']}",
            text=text % {"name": found["channel"], "number": found["number"]},
            severity=Severity.LOSING,
            why=_("Sending failed three times or more; it is tried again for two hours. The other channels work."),
            since=found["since"],
            size=found["number"],
            step=Step(_("Look at the tasks"), waiting, command("test_alert", found["channel"])),
        )
