"""Redact arguments and tracebacks for display and storage, and make error texts storable in PostgreSQL."""

import inspect
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, repeat
from traceback import format_exception
from typing import Any

from tasks.compat import Task
from tasks.framework import declaration
from tasks.support.secret_finder import REDACTED, SecretFinder

SHORTEST_SECRET = 4  # characters: shorter secrets would match everywhere in a traceback
LONGEST_TEXT = 100_000  # characters
NUL_SHOWN = "\\x00"
_logged_text: ContextVar[str | None] = ContextVar("logged_as", default=None)


def redact(value: Any) -> Any:
    """Copy a JSON value, or a text, with every secret replaced at any depth."""
    return SecretFinder().copy(value)


def redact_call(task_path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call for pages and commands.

    Positional arguments have names only if the function is registered; otherwise only keys inside them are checked.
    """
    finder, task = SecretFinder(), declaration.find(task_path)
    parameters = chain(_positional_names(task) if task else (), repeat(""))
    shown = [
        finder.hide(value) if finder.is_secret(name) else finder.copy(value)
        for value, name in zip(args, parameters, strict=False)
    ]
    return shown, finder.copy(dict(kwargs))


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, in any form in which Python or JSON writes them; short ones stay."""
    forms = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    return text


def storable(text: str, longest: int = LONGEST_TEXT) -> str:
    """Text for PostgreSQL: NUL and lone surrogates escaped, the middle left out beyond `longest`."""
    text = text.replace("\0", NUL_SHOWN).encode(errors="backslashreplace").decode()
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def describe_exception(
    error: BaseException, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str]:
    """The dotted path of the error's class, and its traceback, redacted and storable. Raises nothing.

    A class made inside a function has no path, so its nearest base class with a path is used.
    """
    text = redact(redact_text(_traceback(error), secrets_of(task, args, kwargs)))
    return storable(_class_path(type(error))), storable(text)


class RedactedTraceback(logging.Filter):
    """A filter for the framework's loggers: inside `logged_as` they print that text, not the traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = _logged_text.get()
        if text is not None and record.exc_info:
            record.exc_info, record.exc_text = None, text.rstrip()
        return True


@contextmanager
def logged_as(text: str) -> Iterator[None]:
    """Within the block, log this text in place of the current failure's traceback."""
    token = _logged_text.set(text)
    try:
        yield
    finally:
        _logged_text.reset(token)


def secrets_of(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[str]:
    """All secret texts among the arguments of a call; the function's signature names the positional ones."""
    finder = SecretFinder()
    for name, value in zip(_positional_names(task), args, strict=False):
        finder.copy({name: value})
    finder.copy(kwargs)
    return finder.secrets


def _positional_names(task: Task) -> Iterator[str]:
    """The name of each positional argument, without the context; `*names` names all remaining ones."""
    parameters = list(inspect.signature(task.func).parameters.values())
    for parameter in parameters[1:] if task.takes_context else parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield from repeat(parameter.name)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            yield parameter.name


def _forms(secret: str) -> set[str]:
    """The text plain, as repr() and as JSON: an exception's message may quote it in any of these forms."""
    return {secret, repr(secret)[1:-1], ascii(secret)[1:-1], json.dumps(secret)[1:-1]}


def _traceback(error: BaseException) -> str:
    try:
        return "".join(format_exception(error))
    except Exception as failure:  # noqa: BLE001  a hostile __str__ must not keep the failure from being saved
        return f"{type(error).__qualname__}: (its traceback could not be written: {type(failure).__qualname__})\n"


def _class_path(kind: type[BaseException]) -> str:
    named = next(base for base in kind.__mro__ if "<" not in base.__qualname__)
    return f"{named.__module__}.{named.__qualname__}"
