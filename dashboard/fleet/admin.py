"""The installations in the admin: superusers alone, the token write-only, every change in the audit."""

from typing import Any

from django import forms
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import connection
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from dashboard import secrets
from dashboard.fleet.installations import name_problem, token_problem, url_problem
from dashboard.live import snapshots
from dashboard.models import Installation
from tasks.admin.read_only import DeclaredFilters
from tasks.admin.rights import who
from tasks.support import audit
from tasks.support.audit import Change


class InstallationForm(ModelForm):
    """An empty token keeps the stored one, which no page shows."""

    name = forms.CharField(label=_("Name"), max_length=255)
    url = forms.CharField(
        label=_("Address"), max_length=2000, help_text=_("Of its site, like https://ops-billing.example")
    )
    new_token = forms.CharField(
        label=_("API token"), required=False, max_length=1000, strip=True,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text=_("From `create_token` on the installation. Empty: the stored one stays."),
    )  # fmt: skip

    class Meta:
        model = Installation
        fields = ("name", "url")

    def clean_name(self) -> str:
        return checked(self.cleaned_data["name"], name_problem)

    def clean_url(self) -> str:
        """A token belongs to its host: with another host it has to be entered again."""
        return checked(self.cleaned_data["url"].rstrip("/"), url_problem)

    def clean(self) -> dict[str, Any]:
        found = super().clean() or self.cleaned_data
        written, kept = found.get("new_token", ""), self.instance.token
        is_elsewhere = bool(kept) and found.get("url") != self.initial.get("url")
        if written or not kept or is_elsewhere:
            try:
                self.instance.token = secrets.seal(checked(written, token_problem))
            except ValidationError as error:
                text = _("Another address needs the token again: the stored one goes to no other host.")
                self.add_error("new_token", text if is_elsewhere and not written else error)
            except ImproperlyConfigured as error:
                self.add_error("new_token", str(error))
        return found


def checked(text: str, problem_of: Any) -> str:
    if problem := problem_of(text):
        raise ValidationError(f"{problem[0].upper()}{problem[1:]}")
    return text


class InstallationAdmin(DeclaredFilters):
    """Whoever names an address makes this server connect to it, so only superusers may."""

    form = InstallationForm
    list_display = ("name", "url")
    ordering = ("name",)
    search_fields = ("name",)
    actions = None  # each deletion is audited with its name

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.is_active and request.user.is_superuser)

    has_add_permission = has_view_permission
    has_change_permission = has_delete_permission = has_module_permission = has_view_permission

    def save_model(self, request: HttpRequest, obj: Installation, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        self._record(request, obj, f"{'edit' if change else 'add'} url={obj.url}")

    def delete_model(self, request: HttpRequest, obj: Installation) -> None:
        self._record(request, obj, "delete")
        super().delete_model(request, obj)

    def _record(self, request: HttpRequest, row: Installation, action: str) -> None:
        audit.record(connection, who(request.user), action, [Change(f"installation:{row.name}")])
        snapshots.forget()
