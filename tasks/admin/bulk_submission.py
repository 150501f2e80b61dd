"""A submitted form about everything that matches a filter: what it names, how many that is, and a few of them."""

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

    task: Task
    finding: Finding
    repeats: str
    refusal: str


@dataclass(frozen=True)
class BulkPreview:
    """What a submission would meet: how many it is about, how many match and stay, and the newest few.

    `refusals`: why some of the newest `rehearsed` tasks would stay as they are, as a run keeps it.
    """

    tally: Tally
    unfit: Tally
    examples: list[Example]
    rehearsed: int
    refusals: list[tuple[str, Any]]


def preview(submission: BulkSubmission, who: Who) -> BulkPreview:
    """Count, and rehearse on the newest; takes about 2.5 seconds at most."""
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
    """Tasks that match, in a state in which the action can do nothing; not counted for long."""
    wanted = submission.chosen.statuses or TaskStatus.values
    statuses = [str(status) for status in wanted if status not in submission.statuses]
    if not statuses:
        return Tally()
    return tally(submission.chosen.with_statuses(*statuses), submission.upto, seconds=UNFIT_SECONDS)


def rehearse(submission: BulkSubmission, tasks: list[Task], who: Who) -> Result:
    """The action itself on these tasks, rolled back."""
    settings = replace(submission.settings, reason=submission.settings.reason or _("rehearsal"))
    perform = INSTRUCTIONS[submission.action.name].perform
    return perform([task.pk for task in tasks], who, settings, dry_run=True) if tasks else Result()


def examples(submission: BulkSubmission, tasks: list[Task], result: Result) -> list[Example]:
    """What is known of each of the tasks, and what the action would say of it."""
    facts = gather(tasks)
    found = []
    for task in tasks:
        finding, refusal = decide(task, facts), result.refused.get(task.pk)
        repeats = submission.action.repeats(task, finding)
        found.append(Example(task, finding, repeats, str(refusal.sentence) if refusal else ""))
    return found
