"""`Idempotency-Key`: a write with a key is carried out once, and its repetition gets the same answer.

The key's row is written before the write, in its transaction, so that of equal requests at once all but one wait and
then find the answer. A refusal rolls the row back: sent again, the request is tried again.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import salted_hmac

from tasks.operations.prune import History
from tasks.support.database import execute, fetch

HEADER = "Idempotency-Key"
LONGEST = 200
PARAMETER = {
    "in": "header",
    "name": HEADER,
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST, "pattern": "^[!-~]+$"},
    "description": "Any new text, like a UUID. The same request with the same key changes nothing again.",
    "example": "5c1f0a2e-6a0b-4f0e-9c55-0d6d1f1f7a11",
}

TAKE = """
INSERT INTO dashboard_apirequest (token_id, key, digest)
VALUES (%(token)s::bigint, %(key)s::text, %(digest)s::text) ON CONFLICT DO NOTHING RETURNING id
"""
FIND = """
SELECT digest, status, body FROM dashboard_apirequest WHERE token_id = %(token)s::bigint AND key = %(key)s::text
"""
KEEP = """
UPDATE dashboard_apirequest SET status = %(status)s::smallint, body = %(body)s::text WHERE id = %(id)s::bigint
"""
PRUNE = """
WITH doomed AS MATERIALIZED (
    SELECT id FROM dashboard_apirequest WHERE at < statement_timestamp() - %(age)s::interval
    ORDER BY at LIMIT %(window)s::int FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM dashboard_apirequest USING doomed WHERE dashboard_apirequest.id = doomed.id
    RETURNING dashboard_apirequest.id
)
SELECT 0 AS last_id, count(*) AS deleted, count(*) = %(window)s::int AS is_old FROM deleted
"""
HISTORY = (History("api_requests", "dashboard_apirequest", PRUNE),)


class NoKey(Exception):
    """A write without a key, or with one that cannot be kept."""


class OtherRequest(Exception):
    """The key belongs to another request."""


def once(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Run the operation, or give back the answer that its key has."""

    @wraps(operation)
    def wrapped(request: HttpRequest, *args: Any, **values: Any) -> Any:
        if request.method in ("GET", "HEAD", "OPTIONS"):
            return operation(request, *args, **values)
        params = {"token": request.user.token.pk, "key": key_of(request), "digest": digest_of(request)}  # type: ignore[union-attr]
        taken = fetch(connection, TAKE, params)
        if not taken:
            return known(fetch(connection, FIND, params)[0], params["digest"])
        request.rowlock_request = taken[0]["id"]  # type: ignore[attr-defined]
        return operation(request, *args, **values)

    return wrapped


def key_of(request: HttpRequest) -> str:
    key = request.headers.get(HEADER, "")
    if not key:
        raise NoKey(f"A write needs the header {HEADER}, a new text for each: sent again, it changes nothing twice.")
    if len(key) > LONGEST or not key.isascii() or not key.isprintable() or " " in key:
        raise NoKey(f"{HEADER} has more than {LONGEST} characters, or others than printable ASCII without spaces.")
    return key


def digest_of(request: HttpRequest) -> str:
    """The same for the same request: method, path, version and body. Keyed, because a body may have secrets."""
    parts = (request.method or "", request.get_full_path(), request.headers.get("If-Match", ""))
    return salted_hmac(HEADER, "\n".join(parts).encode() + b"\n" + request.body, algorithm="sha256").hexdigest()


def known(row: dict[str, Any], digest: str) -> HttpResponse:
    """The answer that was kept. Raises OtherRequest."""
    if row["digest"] != digest:
        raise OtherRequest(f"This {HEADER} was sent with another request: take a new one.")
    response = HttpResponse(row["body"], content_type="application/json; charset=utf-8", status=row["status"])
    response["Idempotent-Replayed"] = "true"
    return response


def keep(request: HttpRequest, response: HttpResponse) -> None:
    """Keep the answer of a request that was carried out."""
    if (taken := getattr(request, "rowlock_request", None)) is not None:
        body = response.content.decode()
        execute(connection, KEEP, {"id": taken, "status": response.status_code, "body": body})
