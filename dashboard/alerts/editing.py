"""Add, edit and delete channels of alerts by hand, audited without their addresses."""

import logging
from dataclasses import dataclass

from django.db import DatabaseError, connection

from dashboard.models import AlertChannel
from tasks.operations.verb import short_waits
from tasks.support import audit
from tasks.support.audit import Change, Who

logger = logging.getLogger(__name__)

NOTE = """
UPDATE dashboard_alertchannel SET
    sent_at = CASE WHEN %(problem)s::text = '' THEN statement_timestamp() ELSE sent_at END,
    failed_at = CASE WHEN %(problem)s::text = '' THEN failed_at ELSE statement_timestamp() END,
    failure = CASE WHEN %(problem)s::text = '' THEN failure ELSE %(problem)s::text END
WHERE name = %(name)s::text
"""


@dataclass(frozen=True, kw_only=True)
class Values:
    """A channel as a person writes it; an empty address keeps the stored one."""

    name: str
    address: str
    least_severity: int
    queues: list[str]
    kinds: list[str]
    enabled: bool

    @property
    def columns(self) -> dict[str, object]:
        names = ("name", "least_severity", "queues", "kinds", "enabled")
        return {name: getattr(self, name) for name in names}


def save(channel: AlertChannel, values: Values, who: Who, *, reason: str = "") -> bool:
    """Store the channel, a new one or changed; False if nothing would change.

    The audit names the changed columns, and of the address that it changed. Raises IntegrityError for a name that
    another channel has, ImproperlyConfigured without the package that encrypts.
    """
    is_new, old = channel.pk is None, channel.name
    changes = {name: value for name, value in values.columns.items() if is_new or getattr(channel, name) != value}
    if not changes and not values.address:
        return False
    for name, value in changes.items():
        setattr(channel, name, value)
    if values.address:
        channel.set_address(values.address)
    words = ["add channel" if is_new else "edit channel"]
    words += [f"{name}={written(value)}" for name, value in changes.items() if name != "name" or not is_new]
    words += ["address"] if values.address and not is_new else []
    fields = None if is_new else [*changes, *(["sealed_address"] if values.address else [])]
    with short_waits():
        channel.save(update_fields=fields)
        audit.record(connection, who, " ".join(words), [Change(target(old or channel.name))], reason)
    return True


def delete(channel: AlertChannel, who: Who, *, reason: str = "") -> None:
    """Delete the channel. Messages that wait for it are not sent any more."""
    with short_waits():
        channel.delete()
        audit.record(connection, who, "delete channel", [Change(target(channel.name))], reason)


def record_test(channel: AlertChannel, who: Who) -> None:
    """Audit a test message, which leaves this site."""
    with short_waits():
        audit.record(connection, who, "test channel", [Change(target(channel.name))])


def note(name: str, problem: str = "") -> None:
    """Keep when the channel last took a message, or when and why it last did not. No-op for one of the environment.

    `problem` must not hold an address.
    """
    try:
        with short_waits(), connection.cursor() as cursor:
            cursor.execute(NOTE, {"name": name, "problem": problem})
    except DatabaseError as error:  # What was sent is sent: an error here would have it sent again.
        logger.warning("how sending to the channel %s went was not kept: %s", name, str(error).partition("\n")[0])


def target(name: str) -> str:
    return f"channel:{name}"


def written(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value) or "all"
    return str(value).lower() if isinstance(value, bool) else str(value)
