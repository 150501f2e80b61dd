"""The API's frame: who asks, with which rights, how a write is carried out once, and one form for every refusal."""

import json
from collections.abc import Callable, Mapping
from functools import wraps
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, OperationalError, connection, transaction
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI, Schema
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.openapi.schema import OpenAPISchema
from ninja.renderers import JSONRenderer
from pydantic import Field
from pydantic_core import PydanticSerializationError, to_json

from dashboard import middleware
from dashboard.api import idempotency, throttle, tokens
from dashboard.live import snapshots
from tasks.admin import rights
from tasks.diagnosis import lock_holders
from tasks.exceptions import RowlockError, StaleVersion, UnknownSchedule
from tasks.operations.workers import NoSuchWorker
from tasks.support import reading
from tasks.support.audit import Who
from tasks.support.database import is_lock_not_available
from tasks.support.reading import Unreadable
from tasks.support.redaction import redact

READS = ("GET", "HEAD", "OPTIONS")
LONGEST_EDITION = 2**31 - 1
# Statuses of a refusal that every operation can give; a write has the last ones too.
REFUSALS = (400, 401, 403, 404, 429, 503)
REFUSALS_OF_WRITES = (409, 412, 413, 415, 422, 428)


class Fault(Schema):
    """One fault of a request: where it is, and what is wrong."""

    path: str = Field(examples=["body.priority"])
    message: str = Field(examples=["Input should be a valid integer"])


class ProblemAnswer(Schema):
    """A refusal: what happened, why, and what to do next."""

    title: str = Field(examples=["Conflict"])
    status: int = Field(examples=[409])
    detail: str = Field(examples=["#4711 not changed: it is FAILED at version 7 now; review again."])
    faults: list[Fault] = Field(default=[], description="Where a request is wrong.")
    now: dict[str, Any] | None = Field(None, description="Of 412: the columns of the task as they are now.")
    since: list[dict[str, Any]] = Field([], description="Of 412: what people have done since that version.")


class Problem(Exception):
    """A refusal; `more` are further fields of its answer, and `headers` its headers."""

    status = 400
    more: Mapping[str, Any] = {}

    def __init__(self, detail: str, *, faults: list[dict[str, str]] | None = None, **headers: str) -> None:
        super().__init__(detail)
        self.detail, self.faults = detail, faults or []
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class NotThere(Problem):
    status = 404


class Conflict(Problem):
    status = 409


class Changed(Problem):
    """It is not as the caller saw it."""

    status = 412


class Invalid(Problem):
    """`Invalid("priority", "it is too large")`, or the sentences of several fields."""

    status = 422

    def __init__(self, where: str | dict[str, str], sentence: str = "", *, part: str = "body") -> None:
        found = where if isinstance(where, dict) else {where: sentence}
        faults = [{"path": f"{part}.{name}", "message": text} for name, text in found.items()]
        super().__init__(" ".join(found.values()), faults=faults)


class Unconditional(Problem):
    """A write to a task says which version it means."""

    status = 428


def may(request: HttpRequest) -> Callable[[str], bool]:
    """`has_perm` of the caller."""
    found: Callable[[str], bool] = request.user.has_perm
    return found


def needs(request: HttpRequest, *names: str) -> None:
    """Raise PermissionDenied with the missing right, and who has it."""
    for right in names:
        rights.require(request.user, right)


def only(request: HttpRequest, *names: str) -> None:
    """Raise Invalid for a parameter of another name: a filter with a slip would match every task."""
    if unknown := [name for name in request.GET if name not in names]:
        text = f"There is no such parameter. There are: {', '.join(names)}."
        raise Invalid(dict.fromkeys(unknown, text), part="query")


def who(request: HttpRequest) -> Who:
    """The caller for the audit: the person, and the token that the person has given away."""
    caller: tokens.Caller = request.user  # type: ignore[assignment]
    return Who(f"{caller.get_username()} ({caller.token.name})", "api")


def edition_of(request: HttpRequest) -> int | None:
    """The version in `If-Match`, None without it. Raises Problem unless it is one whole number in quotes."""
    written = request.headers.get("If-Match")
    if written is None:
        return None
    number = reading.digits(written.strip().removeprefix('"').removesuffix('"'))
    if number is None or not 0 <= number <= LONGEST_EDITION:
        raise Problem(f'If-Match: {reading.shown(written)} is no version: send the ETag that you saw, like "7".')
    return number


def needed_edition_of(request: HttpRequest) -> int:
    """As `edition_of`. Raises Unconditional without it."""
    edition = edition_of(request)
    if edition is None:
        raise Unconditional('Say which version you mean: send the ETag that you saw, like If-Match: "7".')
    return edition


class Document(OpenAPISchema):
    """The OpenAPI document with the answers and headers that every operation has."""

    def operation_details(self, operation: Any) -> dict[str, Any]:
        details: dict[str, Any] = super().operation_details(operation)
        is_write = not set(operation.methods) <= set(READS)
        problem = {"application/json": {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}}
        for status in (*REFUSALS, *(REFUSALS_OF_WRITES if is_write else (422,))):
            described = {"description": HTTPStatus(status).phrase, "content": problem}
            details["responses"][status] = described
        if is_write:
            details.setdefault("parameters", []).append(idempotency.PARAMETER)
        return details


class API(NinjaAPI):
    def get_openapi_schema(self, *, path_prefix: str | None = None, path_params: Any = None) -> OpenAPISchema:
        """See Document; the schema of a refusal is among its components."""
        document = Document(self, path_prefix if path_prefix is not None else self.get_root_path(path_params or {}))
        schema = ProblemAnswer.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= {**schema.pop("$defs", {}), "ProblemAnswer": schema}
        return document

    def on_exception(self, request: HttpRequest, exc: Any) -> HttpResponse:
        """Every refusal is a ProblemAnswer; a fault of ours goes on to the handler of errors.

        So does an error of the database, to the guard: here its transaction has failed, and answers nothing more.
        """
        found = None if isinstance(exc, DatabaseError) else problem_of(exc, request)
        return super().on_exception(request, exc) if found is None else answer(found)


def answer(problem: Problem) -> HttpResponse:
    body = {
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": redact(problem.detail),
        "faults": problem.faults,
        **problem.more,
    }
    return HttpResponse(
        json.dumps(body), content_type="application/json", status=problem.status, headers=problem.headers
    )


class NotKnown(Problem):
    status = 401


class NotAllowed(Problem):
    status = 403


class TooMany(Problem):
    status = 429


class Unavailable(Problem):
    status = 503


def path_of(place: tuple[str | int, ...]) -> str:
    """`body.priority`, without the name that our function has for the body."""
    return ".".join(map(str, place[:1] + place[2:] if place[:2] == ("body", "body") else place))


def of_validation(error: ValidationError) -> Problem:
    faults = [{"path": path_of(fault["loc"]), "message": fault["msg"]} for fault in error.errors]
    found = Problem(f"{len(faults)} faults in the request: see `faults`.", faults=faults)
    found.status = 422
    return found


def of_framework(error: HttpError) -> Problem:
    found = Problem(str(error))
    found.status = error.status_code
    return found


def of_database(error: DatabaseError, request: HttpRequest) -> Problem | None:
    """409 for a row that a session holds, 503 for a table or a silent database; callers with the right see whose."""
    if not isinstance(error, OperationalError):
        return None
    is_known = lock_holders.is_met(error) and middleware.may_see(request)
    found = lock_holders.holders(connection, error) if is_known else []
    who = "".join(f" {holder.sentence}." for holder in found) or " `show_locks` says who."
    if not is_lock_not_available(error) and not found:
        return Unavailable("The database does not answer: see /readyz. Send it again.", Retry_After="5")
    if lock_holders.ROW_OF.search(str(error)):
        return Conflict(f"Another session holds a row that this needs.{who} {AGAIN}", Retry_After="1")
    return Unavailable(f"A session holds a table that this needs, perhaps a migration.{who} {AGAIN}", Retry_After="5")


def of_refusal(error: RowlockError) -> Problem:
    return Invalid("request", str(error)) if isinstance(error, ValueError) else Conflict(str(error))


AGAIN = "Nothing was changed: send it again, with the same Idempotency-Key."
UNKNOWN_CALLER = "Send `Authorization: Bearer …` with a token that is valid; `create_token` makes one."
# The refusal that an error is for a caller, by the first kind that fits; other errors are faults of ours.
PROBLEMS: tuple[tuple[tuple[type[Exception], ...], Callable[[Any], Problem | None]], ...] = (
    ((Problem,), lambda problem: problem),
    ((throttle.TooOften,), lambda error: TooMany(str(error), Retry_After=str(error.seconds))),
    ((AuthenticationError,), lambda error: NotKnown(UNKNOWN_CALLER, WWW_Authenticate="Bearer")),
    ((PermissionDenied,), lambda error: NotAllowed(str(error) or "You may not do that.")),
    ((ValidationError,), of_validation),
    ((HttpError,), of_framework),
    ((idempotency.OtherRequest,), lambda error: Invalid("Idempotency-Key", str(error), part="header")),
    ((idempotency.NoKey,), lambda error: Problem(str(error))),
    ((StaleVersion,), lambda error: Changed(str(error))),
    ((Http404, UnknownSchedule, NoSuchWorker), lambda error: NotThere(str(error) or "There is no such row.")),
    ((Unreadable,), lambda error: Invalid("request", str(error))),
    ((RowlockError,), of_refusal),
)  # fmt: skip


def problem_of(error: Exception, request: HttpRequest) -> Problem | None:
    """The refusal that an error is for a caller; None for a fault of ours."""
    if isinstance(error, DatabaseError):
        return of_database(error, request)
    return next((make(error) for kinds, make in PROBLEMS if isinstance(error, kinds)), None)


class Bearer:
    """Authenticate: the caller of the token in the header, who is the request's user from then on."""

    openapi_security_schema = {"type": "http", "scheme": "bearer", "description": "A token of `create_token`."}

    def __call__(self, request: HttpRequest) -> tokens.Caller | None:
        known: tokens.Caller | None = getattr(request, "rowlock_caller", None)
        if known is not None:
            return known
        scheme, _space, secret = request.headers.get("Authorization", "").partition(" ")
        caller = tokens.caller_of(secret.strip(), request) if scheme.lower() == "bearer" else None
        if caller is not None:
            request.user = request.rowlock_caller = caller  # type: ignore[assignment, attr-defined]
        return caller


bearer = Bearer()


def in_one_transaction(run: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """A write, its audit and the answer that is kept for its key commit together; a refusal leaves nothing.

    The caller is counted before, or a refusal would roll that back.
    """

    @wraps(run)
    def wrapped(request: HttpRequest, **values: Any) -> HttpResponse:
        if request.method in READS:
            return run(request, **values)
        if bearer(request) is None:
            raise AuthenticationError
        with transaction.atomic():
            response = run(request, **values)
            if response.status_code >= HTTPStatus.BAD_REQUEST:
                transaction.set_rollback(True)
            else:
                idempotency.keep(request, response)
        snapshots.forget()  # what another request has read meanwhile is older
        return response

    return wrapped


class Renderer(JSONRenderer):
    """JSON by pydantic, which writes times without a call of Python for each."""

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> bytes | str:
        try:
            return to_json(data, inf_nan_mode="null")
        except PydanticSerializationError:  # half a surrogate pair, as encrypted arguments may have
            return str(super().render(request, data, response_status=response_status))


api = API(
    title="Rowlock",
    version="1",
    renderer=Renderer(),
    description="What the operators' pages show and do: same rights, versions, refusals, reasons and audit.",
    urls_namespace="rowlock-api",
    auth=bearer,
    docs_url=None,
)
api.add_decorator(in_one_transaction, mode="view")
api.add_decorator(idempotency.once, mode="operation")
