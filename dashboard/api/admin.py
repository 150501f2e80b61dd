"""Tokens of the API in the admin: superusers make and revoke them; the secret is shown once."""

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from dashboard.api import tokens
from dashboard.layout import page
from dashboard.models import ApiToken
from tasks.admin import rights
from tasks.admin.forms import WholeNumberField
from tasks.admin.read_only import DeclaredFilters
from tasks.support import reading

LONGEST_DAYS = 3650


class TokenForm(forms.ModelForm):
    """A new token; without a number of days it is valid until it is revoked."""

    days = WholeNumberField(
        label=gettext_lazy("Valid for (days), optional"), required=False, min_value=1, max_value=LONGEST_DAYS
    )

    class Meta:
        model = ApiToken
        fields = ("name", "user", "group")
        widgets = {"name": forms.TextInput}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if users := self.fields.get("user"):  # the page of a token only shows it
            users.queryset = users.queryset.filter(is_active=True, is_staff=True)  # type: ignore[attr-defined]

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        try:
            return reading.name(name)
        except reading.Unreadable as problem:
            raise forms.ValidationError(str(problem)) from problem


class ApiTokenAdmin(DeclaredFilters):
    """A token acts for its user: whoever could make one for anybody would have everybody's rights."""

    form = TokenForm
    list_display = ("name", "user", "group", "shown", "created_at", "expires_at", "last_used_at", "revoked_at")
    list_select_related = ("user", "group")
    search_fields = ("name",)
    ordering = ("name",)
    actions = ("revoke",)
    show_full_result_count = False

    def has_view_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return is_superuser(request)

    # An account that goes takes its tokens with it, and the admin asks here whether it may.
    has_module_permission = has_add_permission = has_delete_permission = has_view_permission

    def has_change_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return False

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """The stock page says whether there is such a token before it asks who wants to know."""
        if not is_superuser(request):
            raise PermissionDenied
        return super().history_view(request, object_id, extra_context)

    def get_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> tuple[str, ...]:
        return self.list_display if obj else ("name", "user", "group", "days")

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:
        days = form.cleaned_data["days"]
        lasts = timedelta(days=days) if days else None
        secret = tokens.create(obj.name, obj.user, rights.who(request.user), group=obj.group, lasts=lasts)
        obj.pk = ApiToken.objects.get(name=obj.name).pk
        request.new_secret = secret  # type: ignore[attr-defined]

    def response_add(self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None) -> HttpResponse:
        """The one page that shows the secret. A message would carry it through a cookie or the table of sessions."""
        back = reverse(f"{self.admin_site.name}:dashboard_apitoken_changelist")
        context = {"secret": request.new_secret, "back": back}  # type: ignore[attr-defined]
        return page(request, "api/token.html", _("Token %(name)s") % {"name": obj.name}, context)

    @admin.action(description=gettext_lazy("Revoke the selected tokens"), permissions=["view"])
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiToken]) -> None:
        who = rights.who(request.user)
        number = sum(tokens.revoke(token.name, who) for token in chosen)
        text = ngettext("%(number)d token is revoked.", "%(number)d tokens are revoked.", number)
        messages.success(request, text % {"number": number})


def is_superuser(request: HttpRequest) -> bool:
    user = request.user
    return bool(user.is_active and user.is_staff and getattr(user, "is_superuser", False))
