"""The channels that alerts go to: those of the admin, and those of ROWLOCK_ALERT_URLS, which are read-only."""

from collections.abc import Iterator
from dataclasses import dataclass

from dashboard import conf
from dashboard.models import AlertChannel, Incident
from tasks.panels import Severity

OWN_TROUBLE = "alert-channel"  # kind of the line that says that a channel fails


@dataclass(frozen=True)
class Channel:
    """One place to send to; `stored` is its row, None if it comes from the environment."""

    name: str
    stored: AlertChannel | None = None
    from_environment: str = ""

    @property
    def address(self) -> str:
        """The address in plain, for the moment of sending only. Raises AddressLocked."""
        return self.stored.address if self.stored else self.from_environment

    def wants(self, incident: Incident) -> bool:
        """True if its filters let this incident through. A channel gets no message about its own failure."""
        kind, _, rest = incident.line.partition(":")
        if kind == OWN_TROUBLE and rest == self.name:
            return False
        if self.stored is None:
            return incident.severity <= Severity.SLOW
        of_kind = not self.stored.kinds or incident.kind in self.stored.kinds
        of_queue = not self.stored.queues or rest in self.stored.queues
        return incident.severity <= self.stored.least_severity and of_kind and of_queue


def channels() -> list[Channel]:
    """Every channel that is enabled."""
    stored = AlertChannel.objects.filter(enabled=True).order_by("name")
    return [*(Channel(row.name, row) for row in stored), *_from_environment()]


def find(name: str) -> Channel | None:
    """The enabled channel of this name."""
    return next((channel for channel in channels() if channel.name == name), None)


def _from_environment() -> Iterator[Channel]:
    """Channels named by their place and scheme: `env-1-https`. Never by their address, which is a secret."""
    for place, address in enumerate(conf.get("ALERT_URLS"), start=1):
        yield Channel(f"env-{place}-{address.partition('://')[0]}", from_environment=address)
