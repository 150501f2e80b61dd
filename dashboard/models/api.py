"""Tokens of the API and what they did; and the installations of a fleet, which are asked by it."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from tasks.support.durations import StatementTimestamp

SHA_256 = "^[0-9a-f]{64}$"
FERNET = r"^gAAAA[A-Za-z0-9_=-]{20,}$"  # an encrypted text


class ApiToken(models.Model):
    """A token of the API: it acts for its user, with those of the user's rights that its group has too.

    The secret itself is nowhere: `secret_hash` is its SHA-256, `shown` its first characters.
    """

    name = models.TextField(unique=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    group = models.ForeignKey("auth.Group", on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    secret_hash = models.TextField(unique=True)
    shown = models.TextField()
    created_at = models.DateTimeField(db_default=StatementTimestamp())
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)  # to the minute
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()  # superusers alone make and see them
        verbose_name = _("API token")
        constraints = [
            models.CheckConstraint(condition=Q(secret_hash__regex=SHA_256), name="dashboard_apitoken_hashed")
        ]

    def __str__(self) -> str:
        return self.name


class ApiRequest(models.Model):
    """A write that a token carried out, under its `Idempotency-Key`, with the answer."""

    token = models.ForeignKey(ApiToken, on_delete=models.CASCADE, related_name="+")
    key = models.TextField()
    digest = models.TextField()  # of method, path, version and body
    status = models.SmallIntegerField(null=True)  # null only within the transaction of the write
    body = models.TextField(db_default="")
    at = models.DateTimeField(db_default=StatementTimestamp(), db_index=True)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["token", "key"], name="dashboard_apirequest_once")]

    def __str__(self) -> str:
        return self.key


class ApiCount(models.Model):
    """How often a token has asked, or an address was wrong, since the period began. The table is unlogged."""

    name = models.TextField(primary_key=True)
    began_at = models.DateTimeField()
    number = models.IntegerField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.number} of {self.name}"


class Installation(models.Model):
    """Another installation of Rowlock, which the page of the fleet shows. Superusers keep these rows."""

    name = models.TextField(unique=True)
    url = models.TextField(help_text=_("Of its site, like https://ops-billing.example"))
    token = models.TextField()  # of its API, encrypted by `dashboard.secrets`

    class Meta:
        default_permissions = ("view",)
        constraints = [
            models.CheckConstraint(
                condition=Q(name__regex=r"^[^=,|[:cntrl:]]{1,255}$"), name="dashboard_installation_name_is_one"
            ),
            models.CheckConstraint(
                condition=Q(url__regex=r"^https?://[^/?#@[:space:]]+(/[^?#@[:space:]]*)?$"),
                name="dashboard_installation_url_is_one",
            ),
            # No token can be stored in plain, by SQL neither.
            models.CheckConstraint(condition=Q(token__regex=FERNET), name="dashboard_installation_sealed"),
        ]

    def __str__(self) -> str:
        return self.name
