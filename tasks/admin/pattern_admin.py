"""A button on a model's page for each pattern registered for it, and the progress of its run."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from tasks import patterns
from tasks.admin.forms import WholeNumberField
from tasks.admin.rights import missing, require, who
from tasks.diagnosis import decide, gather
from tasks.diagnosis.finding import command
from tasks.patterns import Pattern
from tasks.support.addresses import address
from tasks.support.redaction import redact


class PatternAdmin(admin.ModelAdmin):
    """Mix it into the ModelAdmin of a model with registered patterns, before other bases."""

    # The second is for a project that has `tasks` without its pages: a list without the button.
    change_list_template = ["admin/tasks/pattern/change_list.html", "admin/change_list.html"]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        run, watch = view(require_http_methods(["GET", "POST"])(self.run_view)), view(require_safe(self.watch_view))
        return [
            path("patterns/<slug:name>/", run, name=self._url_name("run")),
            path("patterns/<slug:name>/<int:task_id>/", watch, name=self._url_name("watch")),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        buttons = [
            {
                "pattern": pattern,
                "missing_right": missing(request.user, pattern.permission),
                "running": patterns.unfinished(pattern),
                "command": command_of(pattern),
            }
            for pattern in patterns.of_model(self.model)
        ]
        return super().changelist_view(request, {**(extra_context or {}), "buttons": buttons})

    def run_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """GET: ask for the choices. POST: enqueue a run and redirect to its progress."""
        pattern = self._pattern(name)
        require(request.user, pattern.permission)
        form = form_of(pattern, request.POST if request.method == "POST" else None)
        if not form.is_valid():
            context = {
                **self.admin_site.each_context(request),
                "title": pattern.label,
                "opts": self.opts,
                "pattern": pattern,
                "form": form,
                "command": command_of(pattern),
                "list_url": address(f"admin:{self._url_name('changelist')}"),
            }
            return TemplateResponse(
                request, "admin/tasks/pattern/ask.html", context, status=400 if form.is_bound else 200
            )
        run = patterns.request(pattern, form.cleaned_data, who(request.user))
        if not run.is_new:
            messages.info(request, _("This run was already requested and has not ended."))
        return HttpResponseRedirect(address(f"admin:{self._url_name('watch')}", name, run.task_id))

    def watch_view(self, request: HttpRequest, name: str, task_id: int) -> HttpResponse:
        """The page; htmx gets the part that refreshes itself, and a full reload at the end."""
        if not self.has_view_permission(request):
            require(request.user, f"{self.opts.app_label}.view_{self.opts.model_name}")
        pattern = self._pattern(name)
        progress = patterns.state_of(pattern, task_id)
        if progress is None:
            raise Http404(_("The run does not exist: it was pruned, or the address is wrong."))
        is_part = "HX-Request" in request.headers
        if is_part and progress.is_over:
            return HttpResponse(headers={"HX-Refresh": "true"})
        facts = gather([progress.task])
        report = redact(progress.task.return_value) or {}
        context = {
            **self.admin_site.each_context(request),
            "title": pattern.label,
            "opts": self.opts,
            "pattern": pattern,
            "progress": progress,
            "finding": decide(progress.task, facts),
            "now": facts.now,
            "numbers": {key.replace("_", " "): value for key, value in report.items() if isinstance(value, int)},
            "failures": report.get("failures", []),
            "stopped": report.get("stopped", ""),
            "list_url": address(f"admin:{self._url_name('changelist')}"),
        }
        template = "admin/tasks/pattern/_progress.html" if is_part else "admin/tasks/pattern/progress.html"
        return TemplateResponse(request, template, context)

    def _pattern(self, name: str) -> Pattern:
        found = {pattern.name: pattern for pattern in patterns.of_model(self.model)}
        if name not in found:
            raise Http404(_("No pattern of this name is registered for this model."))
        return found[name]

    def _url_name(self, view: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{view}"


def command_of(pattern: Pattern) -> str:
    """The command that does the same for all rows; empty if the pattern has none."""
    return command(pattern.command, "--until-empty") if pattern.command else ""


def form_of(pattern: Pattern, data: Any = None) -> forms.Form:
    """The pattern's choices and a limit; field ids carry the pattern's name, because a dialog shows it on a page."""
    form = forms.Form(data, auto_id=f"{pattern.name}-%s")
    for choice in pattern.choices:
        choices, label = list(choice.values.items()), str(choice.label)
        field = forms.ChoiceField(label=label, choices=choices, initial=choice.default, widget=forms.RadioSelect)
        form.fields[choice.name] = field
    limit = gettext_lazy("Limit")
    form.fields["limit"] = WholeNumberField(label=limit, required=False, min_value=1, max_value=10_000_000)
    return form
