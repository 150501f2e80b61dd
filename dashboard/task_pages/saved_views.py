"""Saved views: searches that a person keeps under a name, beside the search box."""

from dataclasses import dataclass

from django import forms
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from dashboard import links
from dashboard.models import SavedView
from dashboard.task_pages import VIEW, next_page, rejected
from tasks.admin import rights
from tasks.operations.filters import InvalidFilter, TaskFilter
from tasks.support import reading

MOST = 50  # of a person
LONGEST_NAME = 60


@dataclass(frozen=True)
class ShownView:
    id: str
    name: str
    url: str
    is_here: bool


class ViewForm(forms.Form):
    name = forms.CharField(label=gettext_lazy("Name"), max_length=LONGEST_NAME)
    filter = forms.CharField(required=False, max_length=4000)

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if problem := reading.name_problem(name):
            raise forms.ValidationError(problem)
        return name


def views_of(user_id: int, chosen: TaskFilter) -> list[ShownView]:
    """This person's views by name; a view whose filter this version cannot read is left out."""
    found = []
    for view in SavedView.objects.filter(user_id=user_id).order_by("name")[:MOST]:
        try:
            kept = TaskFilter.from_query(view.query)
        except InvalidFilter:
            continue
        found.append(ShownView(str(view.pk), view.name, links.listed(kept), kept == chosen))
    return found


def person_of(request: HttpRequest) -> int:
    """The id of the person who asks, who is logged in."""
    assert request.user.pk is not None
    return request.user.pk


@require_POST
def save_view(request: HttpRequest) -> HttpResponse:
    """Keep the filter of the list under a name; a name that is taken is refused."""
    rights.require(request.user, VIEW)
    form = ViewForm(request.POST)
    if not form.is_valid():
        return rejected(
            request, _("Not saved: a view needs a name of at most %(most)d characters.") % {"most": LONGEST_NAME}
        )
    name, query = form.cleaned_data["name"], form.cleaned_data["filter"]
    try:
        chosen = TaskFilter.from_query(query)
    except InvalidFilter as error:
        return rejected(request, error)
    if chosen.is_empty:
        return rejected(request, _("Not saved: there is no search to keep. Search first."))
    mine = SavedView.objects.filter(user_id=person_of(request))
    if mine.count() >= MOST:
        return rejected(request, _("Not saved: you have %(most)d views. Delete one first.") % {"most": MOST})
    try:
        with transaction.atomic():
            SavedView.objects.create(user_id=person_of(request), name=name, query=query)
    except IntegrityError:
        return rejected(
            request, _("Not saved: you have a view %(name)s already. Choose another name.") % {"name": name}
        )
    return HttpResponseRedirect(links.listed(chosen))


@require_POST
def delete_view(request: HttpRequest) -> HttpResponse:
    """Delete one of this person's views; a second press finds nothing left to do."""
    rights.require(request.user, VIEW)
    number = reading.digits(request.POST.get("view", ""))
    if number is None:
        return rejected(request, _("Name the view."))
    SavedView.objects.filter(user_id=person_of(request), pk=number).delete()
    return HttpResponseRedirect(next_page(request))
