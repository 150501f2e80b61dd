"""Enqueue a registered task from a form."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from tasks.admin import rights
from tasks.admin.enqueue_form import EnqueueForm, known_tasks
from tasks.admin.listing import known_queues
from tasks.admin.task_pages import VIEW, TaskPages
from tasks.bulk import forms

ENQUEUE = "tasks.enqueue_task"


class EnqueueViews(TaskPages):
    """The part of `TaskAdmin` that enqueues tasks."""

    def enqueue_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_http_methods(["GET", "HEAD", "POST"])(self.enqueue_view))
        return [path("enqueue/", view, name="tasks_task_enqueue")]

    def enqueue_view(self, request: HttpRequest) -> HttpResponse:
        """Show the form; enqueue a posted one, or with `check` only show its command and its errors."""
        rights.require(request.user, VIEW)
        if request.method != "POST":
            return self._form(request, EnqueueForm(initial={"task": request.GET.get("task", "")}), forms.new_token())
        rights.require(request.user, ENQUEUE)
        form, token = EnqueueForm(request.POST), request.POST.get("token", "")
        if not forms.is_token(token):
            return self.rejected(request, _("The form was changed on its way: go back, load the page anew, try again."))
        if form.is_valid() and form.enqueue(rights.who(request.user), dry_run=True) and "check" not in request.POST:
            return self._enqueue(request, form, token)
        return self._form(request, form, token, status=200 if form.is_valid() else 400)

    def _enqueue(self, request: HttpRequest, form: EnqueueForm, token: str) -> HttpResponse:
        submitted = forms.once(token, lambda: str(form.enqueue(rights.who(request.user))))
        if submitted.is_new:
            messages.success(request, _("Enqueued as #%(id)s.") % {"id": submitted.target})
        return HttpResponseRedirect(reverse("admin:tasks_task_change", args=[submitted.target]))

    def _form(self, request: HttpRequest, form: EnqueueForm, token: str, status: int = 200) -> HttpResponse:
        context = {
            "form": form,
            "token": token,
            "missing_right": rights.missing(request.user, ENQUEUE),
            "known": known_tasks(),
            "queues": known_queues(),
            "command": form.command() if form.is_bound and form.is_valid() else "",
        }
        return self.page(request, "enqueue.html", _("Enqueue a task"), context, status=status)
