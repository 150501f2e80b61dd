"""Admin for any model with its row locks: shows each row's holder, and never overwrites another person's change."""

from collections.abc import Callable
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import DatabaseError, models
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from tasks.admin.read_only import DeclaredFilters, column
from tasks.diagnosis.finding import describe_lock, describe_locker
from tasks.exceptions import StaleVersion
from tasks.locking import rowlocks, update_if_unchanged
from tasks.locking.rowlocks import Hold, Locker, RowLock
from tasks.support.database import is_lock_not_available
from tasks.support.durations import spoken

VERDICTS = {
    Hold.HELD: _("Row locked"),
    Hold.UNCERTAIN: _("Row locked, holder uncertain"),
    Hold.TOUCHED: _("Touched"),
}

# Functions of other apps that give the URL of a database session's page by its pid, or an empty text.
SESSION_PAGES: list[Callable[[int], str]] = []


def linked(lock: RowLock) -> str:
    """The row's holders in words; each session is a link if some app has a page for it."""
    if lock.hold is not Hold.HELD:
        return describe_lock(lock)
    return format_html_join(", ", "{}", ((linked_locker(one),) for one in lock.lockers))


def linked_locker(locker: Locker) -> str:
    """One holder: its session, its name and the age of its transaction."""
    if locker.pid is None:
        return describe_locker(locker)
    text, urls = _("session %(pid)d") % {"pid": locker.pid}, [page(locker.pid) for page in SESSION_PAGES]
    who = format_html(
        "{} ({})",
        format_html('<a href="{}">{}</a>', urls[0], text) if any(urls) else text,
        locker.application_name or _("unnamed"),
    )
    if locker.transaction_seconds is None:
        return who
    return format_html(str(_("{}, transaction open for {}")), who, spoken(locker.transaction_seconds))


def lock_of(row: models.Model) -> RowLock | None:
    """The lock on one row."""
    return rowlocks.lockers(type(row), [row.pk]).get(row.pk)


def lock_line(row: models.Model) -> str:
    """The lock on one row, as the line over its form."""
    lock = lock_of(row)
    if lock is None:
        return format_html('<p class="quiet">{}</p>', _("No session locks this row."))
    text = format_html(str(_("Locked by {}")), linked(lock)) if lock.hold is Hold.HELD else linked(lock)
    return format_html('<p class="{}">{}</p>', "holder" if lock.is_exclusive else "quiet", text)


class LockAwareList(ChangeList):
    """The list, each row with its lock, read once for the whole page."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        locks = rowlocks.lockers(self.model, [row.pk for row in self.result_list])
        for row in self.result_list:
            row.lock = locks.get(row.pk)


class SeenVersionForm(forms.ModelForm):
    """Carries the version that the person saw; if the row has changed since, refuses and lists the differences."""

    seen_version = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["seen_version"].initial = self.instance.version
        if self.instance.pk is None:
            del self.fields["seen_version"]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if self.instance.pk is None or "seen_version" not in cleaned:
            return cleaned
        now = type(self.instance)._base_manager.filter(pk=self.instance.pk).first()
        if now is None:
            raise ValidationError(_("This row was deleted by somebody else meanwhile."))
        if now.version == cleaned["seen_version"]:
            return cleaned
        differences = [
            _("%(field)s is %(now)s now, and you wrote %(yours)s")
            % {"field": name, "now": value, "yours": cleaned[name]}
            for name in self._meta.fields or ()
            if name in cleaned and name != "seen_version" and (value := getattr(now, name)) != cleaned[name]
        ]
        values = {"seen": cleaned["seen_version"], "now": now.version}
        changed = _("Somebody changed this row since you opened it (version %(seen)s, now %(now)s).") % values
        advice = _("Nothing was saved; open it again and decide again.")
        raise ValidationError([changed, *differences, advice])


class LockAwareAdmin(DeclaredFilters):
    """A ModelAdmin that lists holder, verdict and version, and saves only over the version that the form showed.

    Works for any model whose primary key is a plain column. Version and guarded form need an integer field `version`
    (see `tasks.locking.VersionedModel`).
    """

    # The second is for a project that has `tasks` without its pages: a form without the line.
    change_form_template: ClassVar[Any] = ["admin/tasks/lock_aware/change_form.html", "admin/change_form.html"]
    list_per_page = 50  # as in the other lists: a hundred rows took the web server twice as long

    verdict = column(_("verdict"), lambda row: VERDICTS[row.lock.hold] if row.lock else _("Free"))
    holder = column(_("holder"), lambda row: linked(row.lock) if row.lock else "")
    row_version = column(_("version"), lambda row: f"v{row.version}", ordering="version")

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_lock"
        view = self.admin_site.admin_view(require_safe(self.lock_view))
        return [path("<path:object_id>/lock/", view, name=name), *super().get_urls()]

    def lock_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The line about the row's lock, for the form that shows it."""
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404(_("There is no such row any more."))
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        return HttpResponse(lock_line(row))

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if self.is_versioned and self.form is forms.ModelForm:
            kwargs["form"] = SeenVersionForm
        return super().get_form(request, obj, change=change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """The form's fields, and the seen version where the person may change something."""
        fieldsets = super().get_fieldsets(request, obj)
        names = [name for _title, options in fieldsets for name in options["fields"]]
        is_editable = obj is not None and self.is_versioned and self.has_change_permission(request, obj)
        if is_editable and "seen_version" not in names:
            return [*fieldsets, (None, {"fields": ("seen_version",)})]
        return fieldsets

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        columns = list(super().get_list_display(request))
        extra = ["verdict", "holder", *(["row_version"] if self.is_versioned else [])]
        return columns + [name for name in extra if name not in columns]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LockAwareList

    @property
    def is_versioned(self) -> bool:
        return any(field.name == "version" and isinstance(field, models.IntegerField) for field in self.opts.fields)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Write only the person's changes, and only over the version that the form showed."""
        if not change or not self.is_versioned:
            super().save_model(request, obj, form, change)
            return
        obj.version = form.cleaned_data["seen_version"]
        update_if_unchanged(obj, **{name: getattr(obj, name) for name in form.changed_data if name != "seen_version"})

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The stock view, with the row's lock; a stale version or a locked row becomes a message; nothing is lost."""
        row = self.get_object(request, unquote(object_id)) if object_id else None
        context = {"lock_line": lock_line(row) if row else "", **(extra_context or {})}
        try:
            return super().changeform_view(request, object_id, form_url, context)
        except StaleVersion as error:
            messages.error(request, str(error))
        except DatabaseError as error:
            if not is_lock_not_available(error):
                raise
            lock = lock_of(row) if row else None
            holder = describe_lock(lock) if lock else _("another session held it until a moment ago")
            busy = _("The row is busy: %(holder)s. Nothing was saved; try again.") % {"holder": holder}
            messages.error(request, busy)
        return HttpResponseRedirect(request.get_full_path())
