"""Rights on what is no table of ours: the sessions of the database."""

from django.db import models


class Backend(models.Model):
    """A session of PostgreSQL. It has no table; it exists for the rights to see and to signal such sessions."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = [("signal_backend", "Can cancel and terminate database sessions")]

    def __str__(self) -> str:
        return f"backend {self.pk}"
