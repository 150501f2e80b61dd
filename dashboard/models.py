"""What the pages keep of their own, and rights on what is no table of ours: the sessions of the database."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from tasks.clock import StatementTimestamp


class Backend(models.Model):
    """A session of PostgreSQL. It has no table; it exists for the rights to see and to signal such sessions."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = [("signal_backend", "Can cancel and terminate database sessions")]

    def __str__(self) -> str:
        return f"backend {self.pk}"


class Acknowledgement(models.Model):
    """A line of "Needs attention" that somebody knows of: shown folded until a time, or until it grows.

    `size` is how many things the line was about when it was acknowledged; null when growth does not wake it.
    """

    line = models.TextField(primary_key=True)  # the key of the line, as its source named it
    text = models.TextField(db_default="", blank=True)  # what it said then
    actor = models.TextField()
    reason = models.TextField()
    at = models.DateTimeField(db_default=StatementTimestamp())
    until = models.DateTimeField(null=True, blank=True)
    size = models.BigIntegerField(null=True, blank=True)

    class Meta:
        default_permissions = ("view",)
        permissions = [("acknowledge", _("Can acknowledge what needs attention"))]
        constraints = [
            # One for ever would hide the next trouble of the same name.
            models.CheckConstraint(
                condition=Q(until__isnull=False) | Q(size__isnull=False), name="dashboard_acknowledgement_ends"
            )
        ]

    def __str__(self) -> str:
        return self.line
