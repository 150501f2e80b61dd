"""Compare what needs attention with the open incidents, and enqueue what is to be told, in one transaction.

A crash leaves all of it or nothing; dashboard/alerts/watching.py says who does it.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, OuterRef
from django.utils import translation

from dashboard import conf
from dashboard.alerts.channels import Channel, channels
from dashboard.attention import inbox
from dashboard.models import Incident
from tasks.operations.prune import History
from tasks.panels import AttentionLine, Snapshot
from tasks.support.addresses import address
from tasks.support.database import fetch

MOST_AT_ONCE = 20  # more become one message with counts
GROWTH = 10
GONE_FOR = timedelta(seconds=8)  # a line that only flickers must not tell twice
MOST_LINES = 5000
STORM = "storm"

# Released by the end of the transaction, a crash included. The server ends that of a process that froze within it.
TAKE = """
SELECT pg_try_advisory_xact_lock(hashtext('rowlock:alerts'), hashtext(current_schema())) AS taken,
    statement_timestamp() AS now, set_config('idle_in_transaction_session_timeout', '15s', true)
"""

# Incidents that are over. A storm goes with or after the last of its members, whose rows lead to it.
PRUNE = """
WITH page AS MATERIALIZED (
    SELECT id, opened_at FROM dashboard_incident WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), doomed AS MATERIALIZED (
    SELECT incident.id FROM page JOIN dashboard_incident AS incident ON incident.id = page.id
    WHERE incident.resolved_at < statement_timestamp() - %(age)s::interval FOR UPDATE OF incident SKIP LOCKED
), deleted AS (
    DELETE FROM dashboard_incident USING doomed WHERE dashboard_incident.id = doomed.id AND NOT EXISTS (
        SELECT FROM dashboard_incident AS member
        WHERE member.storm_id = doomed.id AND member.id <> ALL (ARRAY(SELECT id FROM doomed)))
    RETURNING dashboard_incident.id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM deleted) AS deleted,
    (SELECT min(opened_at) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

HISTORY = (History("incidents", "dashboard_incident", PRUNE),)


def watch() -> bool:
    """Compare once. Returns False if there is no channel, or if another process is comparing."""
    targets = channels()
    if not targets:
        return False
    with transaction.atomic(), translation.override(settings.LANGUAGE_CODE):
        [lock] = fetch(connection, TAKE)
        if lock["taken"]:
            Comparison(targets, lock["now"]).run()
    return bool(lock["taken"])


class Comparison:
    """One comparison at the time `now` of the database, under the lock."""

    def __init__(self, targets: Sequence[Channel], now: datetime) -> None:
        self.targets, self.now = targets, now
        snapshot = Snapshot()
        found = inbox.gather(snapshot, lambda right: True, shown=MOST_LINES)
        self.is_whole = not found.hidden and all(line.key != inbox.UNTOLD for line in found.lines)
        self.lines = {line.name: line for line in found.lines if line.key != inbox.UNTOLD}
        self.acknowledged = set(snapshot.once(inbox.acknowledgements))
        self.folded = {known.line.name for known in found.known}
        self.open = {incident.line: incident for incident in Incident.objects.filter(resolved_at__isnull=True)}

    def run(self) -> None:
        new = [line for name, line in self.lines.items() if name not in self.open]
        self.tell(Incident.objects.bulk_create(self.incident(line) for line in new), "opened")
        self.tell([known for known in self.open.values() if self.grows(known)], "grew")
        if self.is_whole:
            ended = [known for known in self.open.values() if self.is_over(known)]
            self.tell([known for known in ended if known.line not in self.acknowledged], "resolved")
        self.end_storms()

    def incident(self, line: AttentionLine) -> Incident:
        return describe(Incident(line=line.name, kind=line.key.partition(":")[0], opened_at=self.now), line)

    def grows(self, known: Incident) -> bool:
        """True if the line became ten times as large since the last message; records it."""
        line = self.lines.get(known.line)
        if line is None or line.size < GROWTH * max(1, known.size):
            return False
        describe(known, line).grew_at = self.now
        known.save()
        return True

    def is_over(self, known: Incident) -> bool:
        """True if the line has been gone for GONE_FOR; records it, and since when it is gone."""
        if known.kind == STORM:
            return False
        gone_since = known.gone_since
        is_there = known.line in self.lines or known.line in self.folded
        known.gone_since = None if is_there else gone_since or self.now
        if known.gone_since is not None and self.now - known.gone_since >= GONE_FOR:
            known.resolved_at = self.now
        if known.gone_since != gone_since or known.resolved_at:
            known.save()
        return known.resolved_at is not None

    def end_storms(self) -> None:
        """Tell that a storm is over when its last incident is."""
        going_on = Incident.objects.filter(storm=OuterRef("pk"), resolved_at__isnull=True)
        for storm in Incident.objects.filter(~Exists(going_on), kind=STORM, resolved_at__isnull=True):
            storm.resolved_at = self.now
            storm.save()
            self.send(storm, "resolved")

    def tell(self, incidents: Sequence[Incident], state: str) -> None:
        """One message for each; one with counts if they are many. Members of a storm end with it."""
        told = [one for one in incidents if state != "resolved" or one.storm_id is None]
        if len(told) <= MOST_AT_ONCE:
            for incident in told:
                self.send(incident, state)
            return
        storm = self.storm(told, state)
        if state == "opened":
            Incident.objects.filter(pk__in=[incident.pk for incident in told]).update(storm=storm)
        self.send(storm, state)

    def storm(self, incidents: Sequence[Incident], state: str) -> Incident:
        """The incident that stands for many."""
        counts = Counter(incident.kind for incident in incidents).most_common()
        words = {"opened": "need attention at once", "grew": "grew tenfold", "resolved": "are over"}
        return Incident.objects.create(
            line=f"{STORM}:{state}:{self.now.isoformat()}",
            kind=STORM,
            severity=min(incident.severity for incident in incidents),
            title=f"{len(incidents)} things {words[state]}",
            detail=", ".join(f"{number} of {kind}" for kind, number in counts),
            url=link(""),
            size=len(incidents),
            opened_at=self.now,
            resolved_at=None if state == "opened" else self.now,
        )

    def send(self, incident: Incident, state: str) -> None:
        """Enqueue the message for each channel that wants it, by ids only."""
        from dashboard.tasks import send_alert  # it imports the delivery, and the lab

        for channel in self.targets:
            if channel.wants(incident):
                send_alert.enqueue(incident=incident.pk, state=state, channel=channel.name, size=incident.size)


def describe(incident: Incident, line: AttentionLine) -> Incident:
    """Fill in what the line says now."""
    incident.severity, incident.title, incident.size = line.severity, line.text, line.size
    incident.detail = "\n".join(filter(None, (line.why, line.step.command and f"$ {line.step.command}")))
    incident.url = link(f"#line-{line.id}")
    return incident


def link(place: str) -> str:
    """The overview's address; absolute if ROWLOCK_URL is set."""
    return f"{conf.get('URL').rstrip('/')}{address('admin:index')}{place}"
