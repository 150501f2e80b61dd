"""*Needs attention* in the API: the lines of the overview, and acknowledging them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Field, Router, Schema

from dashboard.api.base import NotThere, may, needs, who
from dashboard.api.shared import PRINTABLE, Changed, NeededReason, Reason
from dashboard.attention import inbox
from dashboard.attention.inbox import LASTS, SHOWN, Known
from dashboard.live import snapshots
from tasks.panels import LONGEST_KEY, AttentionLine
from tasks.support.addresses import address

ACKNOWLEDGE = "dashboard.acknowledge"
LineName = Annotated[str, Field(min_length=1, max_length=LONGEST_KEY, pattern=PRINTABLE, examples=["stale:payouts"])]
router = Router(tags=["Needs attention"])


class Acknowledged(Schema):
    """The person who folded the line away, and until when."""

    actor: str = Field(examples=["anna"])
    reason: str = Field(examples=["asked the bank"])
    at: datetime
    until: datetime | None
    until_more_than: int | None = Field(description="The line returns when it is about more things.", examples=[12])


class Line(Schema):
    """One thing that needs a person."""

    name: str = Field(description="The same while the problem lasts.", examples=["stale:payouts"])
    severity: str = Field(description="`stopped`, `losing`, `slow` or `notice`, worst first.", examples=["stopped"])
    is_critical: bool = Field(description="True: work stands still until a person acts.")
    text: str = Field(examples=["3 tasks of the queue payouts are stale."])
    why: str = Field(examples=["Their worker is dead, and this queue waits for a person."])
    since: datetime | None
    size: int = Field(description="How many things it is about.", examples=[3])
    url: str = Field(description="The page of the next step, as a path on this host.", examples=["/admin/ops/stale/"])
    command: str = Field(description="The command of the next step; may be empty.", examples=["recover_tasks"])
    acknowledged: Acknowledged | None = None

    @classmethod
    def of(cls, line: AttentionLine, known: Known | None = None) -> dict[str, Any]:
        same = ("name", "is_critical", "text", "why", "since", "size")
        return {
            **{name: getattr(line, name) for name in same},
            "severity": line.severity.name.lower(),
            "url": line.step.url or address("admin:index"),
            "command": line.step.command,
            "acknowledged": acknowledged(known) if known else None,
        }


class LineList(Schema):
    items: list[Line] = Field(description="Worst first; those that somebody has acknowledged stand at the end.")
    next: str | None = Field(None, description="Always null.")
    more: int = Field(description=f"Lines beyond the first {SHOWN}.", examples=[0])


class Acknowledge(NeededReason):
    """The line to fold away, as it was seen."""

    line: LineName
    lasts: Literal["grows", "1h", "8h", "3d"] = Field(description="Until it grows, or for a time.", examples=["8h"])
    size: int = Field(0, ge=0, le=2**63 - 1, description="With `grows`: the size that was seen. 0: the present one.")


class Withdraw(Reason):
    """The line to show again."""

    line: LineName


@router.get("", response=LineList, summary="List what needs attention")
def list_lines(request: HttpRequest) -> dict[str, Any]:
    """The lines that this token may see."""
    found = inbox.gather(snapshots.of(request), may(request))
    known = [Line.of(one.line, one) for one in found.known]
    return {"items": [*map(Line.of, found.lines), *known], "more": found.hidden}


@router.post("/acknowledge", response=Changed, summary="Acknowledge a line")
def acknowledge(request: HttpRequest, body: Acknowledge) -> dict[str, bool]:
    """Fold it away for a time, or until it grows. 404 if the line is gone."""
    needs(request, ACKNOWLEDGE)
    line = inbox.gather(snapshots.of(request), may(request)).find(body.line)
    if line is None:
        raise NotThere("That line is gone: there is nothing to acknowledge.")
    choice = LASTS[body.lasts]
    size = (body.size or line.size) if choice.is_until_it_grows else None
    changed = inbox.acknowledge(line, who(request), reason=body.reason, lasts=choice.lasts, size=size)
    return {"changed": changed}


@router.post("/withdraw", response=Changed, summary="Show an acknowledged line again")
def withdraw(request: HttpRequest, body: Withdraw) -> dict[str, bool]:
    needs(request, ACKNOWLEDGE)
    return {"changed": inbox.withdraw(body.line, who(request), reason=body.reason)}


def acknowledged(known: Known) -> dict[str, Any]:
    how = known.acknowledgement
    same = {name: getattr(how, name) for name in ("actor", "reason", "at", "until")}
    return {**same, "until_more_than": how.size}
