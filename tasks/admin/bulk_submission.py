"""A submitted form about everything that matches a filter: what it names, how many that is, and a few of them."""

from dataclasses import dataclass, replace
from typing import Any, Self

from django.http import QueryDict
from django.utils.translation import gettext as _

from tasks.admin.listing import Place, find
from tasks.admin.page_actions import PageAction
from tasks.admin.settings_form import SettingsForm, form_of, settings_of
from tasks.admin.submission import reason_of
from tasks.audit import Who
from tasks.bulk import forms
from tasks.bulk.instruction import INSTRUCTIONS, Settings
from tasks.bulk.tally import Tally, highest_id, tally
from tasks.bulk.words import command_of
from tasks.filters import InvalidFilter, parse_id
from tasks.list_filter import BoundedFilter, ListFilter
from tasks.models import TaskStatus
from tasks.verdicts import Finding, decide, gather

EXAMPLES = 5
EXAMPLE_SECONDS = 0.5
UNFIT_SECONDS = 0.5


@dataclass(frozen=True)
class BulkSubmission:
    """What a person asked for. `upto`: the highest id when the preview was made; `token` lets it be done once."""

    action: PageAction
    chosen: ListFilter
    upto: int
    token: str
    settings: Settings
    form: SettingsForm
    is_confirmed: bool = False

    @classmethod
    def from_post(cls, action: PageAction, post: QueryDict) -> Self:
        """Read the form of the list or of a preview. Raises InvalidFilter."""
        chosen = ListFilter.from_query(post.get("filter", ""))
        if chosen.is_empty:
            raise InvalidFilter(_("Narrow the list first: no action reaches every task there is."))
        if not forms.is_token(post.get("token", "") or forms.new_token()):
            raise InvalidFilter(_("The form was changed on its way: go back, load the page anew and try again."))
        form = form_of(action.fields, post)
        form.is_valid()
        submission = cls(
            action=action,
            chosen=chosen,
            upto=parse_id(post.get("upto", "")) if post.get("upto") else highest_id(),
            token=post.get("token") or forms.new_token(),
            settings=settings_of(form, reason_of(post), force="force" in post),
            form=form,
            is_confirmed="confirmed" in post and bool(post.get("token")) and bool(post.get("upto")),
        )
        if not submission.statuses:
            raise InvalidFilter(_("No task in the states that the filter names can be changed like that."))
        return submission

    @property
    def statuses(self) -> list[TaskStatus]:
        """The states in which the action can do something, as far as the filter lets them through."""
        wanted = INSTRUCTIONS[self.action.name].statuses
        return [status for status in wanted if not self.chosen.statuses or status in self.chosen.statuses]

    @property
    def subject(self) -> ListFilter:
        """The filter narrowed to these states."""
        return self.chosen.with_statuses(*map(str, self.statuses))

    @property
    def command(self) -> str:
        return command_of(self.action.name, self.subject, self.settings)

    def fault(self) -> str:
        """Why it cannot be carried out as it stands, or an empty text."""
        if self.form.errors:
            return _("Correct what is marked below.")
        return self.action.fault(self.settings)


@dataclass(frozen=True)
class Example:
    """One of the tasks: what is known of it, and why it would stay as it is (empty: it would not)."""

    task: Any
    finding: Finding
    repeats: str
    refusal: str


@dataclass(frozen=True)
class BulkPreview:
    """What a submission would meet: how many it is about, how many match and stay, and the newest few."""

    tally: Tally
    unfit: Tally
    examples: list[Example]


def preview(submission: BulkSubmission, who: Who) -> BulkPreview:
    """Count, and rehearse on the newest few; takes about 2.5 seconds at most."""
    return BulkPreview(tally(submission.subject, submission.upto), unfit(submission), examples(submission, who))


def unfit(submission: BulkSubmission) -> Tally:
    """Tasks that match, in a state in which the action can do nothing; not counted for long."""
    wanted = submission.chosen.statuses or TaskStatus.values
    statuses = [str(status) for status in wanted if status not in submission.statuses]
    if not statuses:
        return Tally()
    return tally(submission.chosen.with_statuses(*statuses), submission.upto, seconds=UNFIT_SECONDS)


def examples(submission: BulkSubmission, who: Who) -> list[Example]:
    """The newest few, and what the action would say of each."""
    bounded = BoundedFilter.within(submission.subject, submission.upto)
    tasks = find(bounded, Place(), limit=EXAMPLES, seconds=EXAMPLE_SECONDS).tasks
    facts = gather(tasks)
    settings = replace(submission.settings, reason=submission.settings.reason or _("rehearsal"))
    versions = {task.pk: task.version for task in tasks}
    refused = submission.action.perform(versions, who, settings, dry_run=True).refused if tasks else {}
    findings = {task.pk: decide(task, facts) for task in tasks}
    return [
        Example(task, findings[task.pk], submission.action.repeats(task, findings[task.pk]), refused.get(task.pk, ""))
        for task in tasks
    ]
