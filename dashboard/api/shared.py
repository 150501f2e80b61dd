"""Types that several parts of the API share: names, reasons, and the answer of a change."""

from typing import Annotated, Any

from ninja import Field, Schema
from pydantic import AfterValidator, ConfigDict

from tasks.support import reading

# Also in the schema, so that a client can check before it sends. The reader says what is wrong in a sentence.
PRINTABLE = r"^[^\u0000-\u001f\u007f-\u009f]*$"

# The part of the document that says which version a change means. Not read by ninja: see `edition_of`.
_SEEN = {
    "in": "header",
    "name": "If-Match",
    "schema": {"type": "string", "pattern": '^"[0-9]{1,9}"$'},
    "example": '"7"',
}
SEEN = {"parameters": [{**_SEEN, "required": True, "description": "The version that was seen, in quotes."}]}
SEEN_IF_GIVEN = {"parameters": [{**_SEEN, "required": False, "description": "The edition that was seen, in quotes."}]}

Name = Annotated[
    str,
    Field(min_length=1, max_length=reading.LONGEST_NAME, pattern=PRINTABLE),
    AfterValidator(reading.name),
]
ReasonText = Annotated[
    str,
    Field(
        max_length=reading.LONGEST_REASON,
        pattern=PRINTABLE,
        description="Why, for the audit: one line.",
        examples=["the bank is down until 9"],
    ),
    AfterValidator(reading.reason),
]


class Body(Schema):
    """The body of a request, which must be an object without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Reason(Body):
    """The body of a change that needs nothing else."""

    reason: ReasonText = ""


class NeededReason(Body):
    """The body of a change that can do harm."""

    reason: Annotated[ReasonText, Field(min_length=1, pattern=r"\S")]


class Changed(Schema):
    """The answer to a change."""

    changed: bool = Field(description="False if it was like that already.", examples=[True])


def condition(text: str, example: str) -> Any:
    """A condition that may be left out. A parameter has one example, not a list of them."""
    known: dict[str, Any] = {"description": text, "json_schema_extra": {"example": example}}
    return Field("", max_length=reading.LONGEST_CONDITION, pattern=PRINTABLE, **known)
