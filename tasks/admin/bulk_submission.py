"""A submitted form about everything that matches a filter: its subject, its size, and a few examples."""

from dataclasses import dataclass, replace
from typing import Any, Self

from django.http import QueryDict
from django.utils.translation import gettext as _

from tasks.actions import Result
from tasks.admin.listing import Place, find
from tasks.admin.page_actions import PageAction
from tasks.admin.settings_form import SettingsForm, form_of, settings_of
from tasks.admin.submission import reason_of
from tasks.audit import Who
from tasks.bulk import forms
from tasks.bulk.carry import add_refusals
from tasks.bulk.instruction import INSTRUCTIONS, Settings
from tasks.bulk.tally import Tally, highest_id, tally
from tasks.bulk.words import command_of
from tasks.filters import InvalidFilter, parse_id
from tasks.list_filter import BoundedFilter, ListFilter
from tasks.models import Task, TaskStatus
from tasks.verdicts import Finding, decide, gather

LONGEST_FILTER = 20_000
EXAMPLES = 5
REHEARSED = 200
EXAMPLE_SECONDS = 0.5
UNFIT_SECONDS = 0.5


@dataclass(frozen=True)
class BulkSubmission:
    """A person's request. `upto`: the highest id at the time of the preview; `token` lets it run only once."""

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
        if len(post.get("filter", "")) > LONGEST_FILTER:
            raise InvalidFilter(_("The filter is too long to be kept: narrow it by fewer conditions."))
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
        """The states that the action can change and that the filter includes."""
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
        """The reason why it cannot be carried out as it stands, or an empty text."""
        if self.form.errors:
            return _("Correct what is marked below.")
        return self.action.fault(self.settings)


@dataclass(frozen=True)
class Example:
    """One of the tasks, with its finding and the action's refusal (empty: none)."""

    task: Task
    finding: Finding
    repeats: str
    refusal: str


@dataclass(frozen=True)
class BulkPreview:
    """The expected effect of a submission; `refusals` are those of the newest `rehearsed` tasks."""

    tally: Tally
    unfit: Tally
    examples: list[Example]
    rehearsed: int
    refusals: list[tuple[str, Any]]


def preview(submission: BulkSubmission, who: Who) -> BulkPreview:
    """Count, and rehearse on the newest tasks; takes about 2.5 seconds at most."""
    bounded = BoundedFilter.within(submission.subject, submission.upto)
    tasks = find(bounded, Place(), limit=REHEARSED, seconds=EXAMPLE_SECONDS).tasks
    result = rehearse(submission, tasks, who)
    refusals: dict[str, Any] = {}
    add_refusals(refusals, result)
    return BulkPreview(
        tally=tally(submission.subject, submission.upto),
        unfit=unfit(submission),
        examples=examples(submission, tasks[:EXAMPLES], result),
        rehearsed=len(tasks),
        refusals=sorted(refusals.items()),
    )


def unfit(submission: BulkSubmission) -> Tally:
    """Count the matching tasks in a state that the action cannot change, for at most UNFIT_SECONDS."""
    wanted = submission.chosen.statuses or TaskStatus.values
    statuses = [str(status) for status in wanted if status not in submission.statuses]
    if not statuses:
        return Tally()
    return tally(submission.chosen.with_statuses(*statuses), submission.upto, seconds=UNFIT_SECONDS)


def rehearse(submission: BulkSubmission, tasks: list[Task], who: Who) -> Result:
    """Perform the action on these tasks and roll it back."""
    settings = replace(submission.settings, reason=submission.settings.reason or _("rehearsal"))
    perform = INSTRUCTIONS[submission.action.name].perform
    return perform([task.pk for task in tasks], who, settings, dry_run=True) if tasks else Result()


def examples(submission: BulkSubmission, tasks: list[Task], result: Result) -> list[Example]:
    """Each task with its finding and the action's refusal."""
    facts = gather(tasks)
    found = []
    for task in tasks:
        finding, refusal = decide(task, facts), result.refused.get(task.pk)
        repeats = submission.action.repeats(task, finding)
        found.append(Example(task, finding, repeats, str(refusal.sentence) if refusal else ""))
    return found
