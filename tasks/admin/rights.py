"""What a person may not do, said with the right that is missing and who has it."""

from typing import Any

from django.contrib.auth.models import Group, Permission
from django.core.exceptions import PermissionDenied
from django.utils.translation import gettext as _

from tasks.audit import Who


def missing(user: Any, right: str) -> str:
    """Why `user` may not do what needs `right` (`tasks.cancel_task`), or an empty text when he or she may."""
    if user.has_perm(right):
        return ""
    app_label, _dot, codename = right.partition(".")
    permission = Permission.objects.filter(content_type__app_label=app_label, codename=codename).first()
    groups = Group.objects.filter(permissions=permission).order_by("name").values_list("name", flat=True)
    told = {
        "right": right,
        "name": permission.name if permission else right,
        "groups": ", ".join(groups) or _("nobody"),
    }
    return _("You lack the right %(right)s (“%(name)s”). Groups that have it: %(groups)s.") % told


def require(user: Any, right: str) -> None:
    """Raise PermissionDenied with that sentence."""
    if sentence := missing(user, right):
        raise PermissionDenied(sentence)


def who(user: Any) -> Who:
    """The audit's name for who is logged in."""
    return Who(user.get_username(), "page")
