"""Refusals that name the missing right and the groups that have it."""

from collections.abc import Iterable
from typing import Any

from django.contrib.auth.models import Group, Permission
from django.core.exceptions import PermissionDenied
from django.utils.translation import gettext as _

from tasks.support.audit import Who


def missing(user: Any, right: str) -> str:
    """The reason why `user` lacks `right` (`tasks.cancel_task`), or an empty text if the user has it."""
    if user.has_perm(right):
        return ""
    app_label, _dot, codename = right.partition(".")
    permission = Permission.objects.filter(content_type__app_label=app_label, codename=codename).first()
    groups = Group.objects.filter(permissions=permission).order_by("name").values_list("name", flat=True)
    values = {
        "right": right,
        "name": permission.name if permission else right,
        "groups": ", ".join(groups) or _("nobody"),
    }
    return _("You lack the right %(right)s (“%(name)s”). Groups that have it: %(groups)s.") % values


def lacking(user: Any, rights: Iterable[str]) -> dict[str, Any]:
    """For a page's buttons: those of these rights that the user lacks, and the sentences that say so."""
    found = {right: text for right in rights if (text := missing(user, right))}
    return {"missing_rights": found, "forbidden": tuple(found)}


def require(user: Any, right: str) -> None:
    """Raise PermissionDenied with that reason."""
    if sentence := missing(user, right):
        raise PermissionDenied(sentence)


def who(user: Any) -> Who:
    """The logged-in user for the audit."""
    return Who(user.get_username(), "page")
