"""Arguments and return values: checked before storing, so that JSON and PostgreSQL can hold them.

PostgreSQL refuses NUL characters, NaN and lone surrogates when the row is written. That would break the caller's
transaction, or the worker's when it saves a result (fault F16). So they are refused here, with their position.
"""

import hmac
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from hashlib import sha256
from inspect import signature
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Model, QuerySet
from django.utils.functional import Promise

from tasks import conf
from tasks.compat import Task
from tasks.exceptions import InvalidArguments
from tasks.support.reading import name_problem, storage_problem

MAX_DEPTH = 100
MAX_INTEGER_DIGITS = 4300  # Python reads no longer ones: sys.int_info.default_max_str_digits
INTEGER_LIMIT = 10**MAX_INTEGER_DIGITS

INSTEAD = {
    Model: "pass its primary key",
    QuerySet: "pass a list of primary keys",
    Decimal: "pass str(value)",
    UUID: "pass str(value)",
    Promise: "pass str(value)",
    date: "pass value.isoformat()",
    time: "pass value.isoformat()",
    timedelta: "pass value.total_seconds()",
    bytes: "pass text, for example in base64",
    set: "pass a sorted list",
    frozenset: "pass a sorted list",
}
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
CANONICAL = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
_signature = cache(signature)
Calls = Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
# A float of 1e16 or more is written with an exponent; the same characters inside text stay.
TEXT_OR_BIG_FLOAT = re.compile(r'"(?:[^"\\]|\\.)*"|-?[\d.]+e\+\d+')


class Call(NamedTuple):
    """The arguments of one call as the handler gets them, and their JSON array `[args, kwargs]`."""

    args: list[Any]
    kwargs: dict[str, Any]
    json: str


class Inserted(NamedTuple):
    """A row and its call. Not `is_new`: the task that had the call's unique key. `is_replaced`: it has changed."""

    id: int
    created_at: datetime
    call: Call
    is_new: bool = True
    is_replaced: bool = False


class Enqueued(list[int]):
    """The ids of the tasks of some calls.

    `duplicates` of these calls found a task with their unique key, and `replaced` of those changed it.
    """

    duplicates = replaced = 0

    def add(self, rows: list[Inserted]) -> Iterable[Inserted]:
        """Add the ids of these rows; returns the new rows."""
        self += [row.id for row in rows]
        new = [row for row in rows if row.is_new]
        self.duplicates += len(rows) - len(new)
        self.replaced += sum(row.is_replaced for row in rows)
        return new


class _Refused(Exception):
    """The reason why a value cannot be stored; each enclosing container adds its step of the path."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.steps: list[str] = []

    def within(self, step: str) -> "_Refused":
        self.steps.append(step)
        return self

    def at(self, name: str) -> str:
        return f"{name}{''.join(reversed(self.steps))}: {self}."


class _UnsupportedType(_Refused):
    """No JSON type fits this Python type: the framework's own backends raise TypeError for it."""


def encode_call(args: Sequence[Any], kwargs: Mapping[str, Any], limit: int | None = None) -> Call:
    """Check the arguments of a call and encode them as JSON; `limit` in bytes, by default the setting.

    Raises InvalidArguments that names the position (`kwargs['a'][3]`), the problem and the remedy.
    """
    limit = max_bytes() if limit is None else limit
    plain_args = _normalised("args", args, limit)
    plain_kwargs = _normalised("kwargs", kwargs, limit)
    call = Call(plain_args, plain_kwargs, _json([plain_args, plain_kwargs]))
    _check_size("args and kwargs", call.json, limit)
    return call


def max_bytes() -> int:
    """The size limit of a call's arguments, or of a return value, in bytes of JSON."""
    limit: int = conf.get("MAX_ARGUMENT_BYTES")
    return limit


def encode_return_value(value: Any, name: str = "return_value") -> str:
    """The JSON text of a handler's return value, or of another value that an error calls `name`.

    Raises TypeError where no JSON type fits, like the framework's own backends, and InvalidArguments otherwise.
    """
    if value is None:
        return "null"
    limit = max_bytes()
    try:
        text = _json(_normalised(name, value, limit))
    except InvalidArguments as error:
        if isinstance(error.__cause__, _UnsupportedType):
            raise TypeError(str(error)) from None
        raise
    _check_size(name, text, limit)
    return text


def check_key(key: Any, what: str) -> str | None:
    """A call's key for storage; None for a call without one. Raises InvalidArguments."""
    if key is None:
        return None
    if problem := name_problem(key):
        raise InvalidArguments(f"The {what} {problem}.")
    return str.__str__(key)


def key_of_arguments(task: Task, call: Call) -> str:
    """The task's name and a hash of path and arguments, equal however they are passed. Raises InvalidArguments.

    Where payloads are encrypted the hash is keyed, so that nobody without the keys can try guesses against it: by the
    oldest key, so that a newer one before it leaves the hashes of waiting tasks as they are.
    """
    context = [None] if task.takes_context else []
    try:
        bound = _signature(task.func).bind(*context, *call.args, **call.kwargs)
    except TypeError as error:
        raise InvalidArguments(f"{task.module_path} cannot be called with these arguments: {error}.") from error
    canonical = CANONICAL.encode([task.module_path, bound.arguments]).encode()
    keys = conf.get("PAYLOAD_KEYS")
    digest = hmac.new(keys[-1].encode(), canonical, sha256) if keys else sha256(canonical)
    return f"{task.module_path.rpartition('.')[2][:100]}:{digest.hexdigest()}"


def _normalised(name: str, value: Any, limit: int) -> Any:
    try:
        return _Walk(limit).copy(value, 0)
    except _Refused as refused:
        raise InvalidArguments(refused.at(name)) from refused


class _Walk:
    """One pass over a value. `budget` is at least the number of bytes left, so that repeated references end too."""

    def __init__(self, budget: int) -> None:
        self.limit = budget
        self.budget = budget

    def copy(self, value: Any, depth: int) -> Any:
        """Copy the value into plain lists, dictionaries, text and numbers. Raises _Refused."""
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, (int, float)):
            return _number(value)
        if isinstance(value, bytes):
            try:
                return self._text(value.decode())
            except UnicodeDecodeError:
                raise _unsupported(value) from None
        if isinstance(value, Mapping):
            return self._mapping(value, self._enter(value, depth))
        if isinstance(value, Sequence):
            return self._sequence(value, self._enter(value, depth))
        raise _unsupported(value)

    def _enter(self, value: Any, depth: int) -> int:
        if depth == MAX_DEPTH:
            raise _Refused(f"More than {MAX_DEPTH} levels, or a container inside itself: flatten it")
        self._spend(len(value))
        return depth + 1

    def _spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:
            raise _Refused(_too_large(self.limit))

    def _sequence(self, value: Sequence[Any], depth: int) -> list[Any]:
        copy = []
        for index, item in enumerate(value):
            try:
                copy.append(self.copy(item, depth))
            except _Refused as refused:
                raise refused.within(f"[{index}]") from None
        return copy

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        copy = {}
        for key, item in value.items():
            try:
                if not isinstance(key, str):
                    raise _Refused(f"Keys must be text, not {type(key).__name__}: use str(key)")
                copy[self._text(key)] = self.copy(item, depth)
            except _Refused as refused:
                shown = ascii(key)[:40] if isinstance(key, (str, int)) else type(key).__name__
                raise refused.within(f"[{shown}]") from None
        return copy

    def _text(self, value: str) -> str:
        self._spend(len(value))
        if problem := storage_problem(value):
            raise _Refused(f"Text {problem}")
        return str.__str__(value)


def _number(value: int | float) -> int | float:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Refused(f"{float(value)!r} is not a number in JSON: pass None or text")
        return float(value)
    if not -INTEGER_LIMIT < value < INTEGER_LIMIT:
        raise _Refused(f"An integer of more than {MAX_INTEGER_DIGITS} digits: pass it as text")
    return int(value)


def _unsupported(value: Any) -> _Refused:
    instead = next((advice for kind, advice in INSTEAD.items() if isinstance(value, kind)), "pass plain JSON values")
    return _UnsupportedType(f"Unsupported type: {type(value)}, {instead}")


def _json(value: Any) -> str:
    text = ENCODER.encode(value)
    return TEXT_OR_BIG_FLOAT.sub(_positional, text) if "e+" in text else text


def _positional(match: re.Match[str]) -> str:
    """Write a float without its exponent: jsonb drops it, so 1e+23 would return as another number, an integer."""
    token = match[0]
    return token if token[0] == '"' else f"{Decimal(token):f}.0"


def _check_size(what: str, text: str, limit: int) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise InvalidArguments(f"{what}: {size} bytes of JSON. {_too_large(limit)}.")


def _too_large(limit: int) -> str:
    return (
        f"At most {limit} bytes of JSON are stored: keep the data elsewhere and pass its key, "
        "or raise ROWLOCK_MAX_ARGUMENT_BYTES"
    )
