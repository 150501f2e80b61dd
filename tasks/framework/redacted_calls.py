"""Redact the arguments of a call and the traceback of its failure: the declaration names what is secret in them."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, repeat
from traceback import format_exception
from typing import Any

from tasks.compat import Task
from tasks.framework import declaration, payload
from tasks.support.reading import storable
from tasks.support.redaction import ENCRYPTED, SecretFinder, is_sealed, redact, redact_text

_logged_text: ContextVar[str | None] = ContextVar("logged_as", default=None)


def redact_call(task_path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call for pages and commands.

    Positional arguments have names only if the function is registered; otherwise only keys inside them are checked.
    """
    return _redacted_arguments(SecretFinder(), declaration.find(task_path), args, kwargs)


def _redacted_arguments(
    finder: SecretFinder, task: Task | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    if is_sealed(kwargs):
        return [ENCRYPTED], {}
    names = chain(_positional_names(task) if task else (), repeat(""))
    shown = [
        finder.hide(value) if finder.is_secret(name) else finder.copy(value)
        for value, name in zip(args, names, strict=False)
    ]
    return shown, finder.copy(dict(kwargs))


def redactor(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[str], str]:
    """A function that removes secrets from a text: those of this call's arguments, and those with a secret's name.

    Where payloads are encrypted every argument is a secret.
    """
    finder = SecretFinder()
    _redacted_arguments(finder, task, args, kwargs)
    if payload.seals(task):
        finder.hide([args, kwargs])
    return lambda text: str(redact(redact_text(text, finder.secrets)))


def describe_exception(
    error: BaseException, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str]:
    """The dotted path of the error's class, and its traceback, redacted and storable. Raises nothing.

    A class made inside a function has no path, so its nearest base class with a path is used.
    """
    text = redactor(task, args, kwargs)(_traceback(error))
    named = next(base for base in type(error).__mro__ if "<" not in base.__qualname__)
    return storable(f"{named.__module__}.{named.__qualname__}"), storable(text)


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


def _positional_names(task: Task) -> Iterator[str]:
    """The name of each positional argument, without the context; `*names` names all remaining ones."""
    parameters = list(inspect.signature(task.func).parameters.values())
    for parameter in parameters[1:] if task.takes_context else parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield from repeat(parameter.name)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            yield parameter.name


def _traceback(error: BaseException) -> str:
    try:
        return "".join(format_exception(error))
    except Exception as failure:  # noqa: BLE001  a hostile __str__ must not keep the failure from being saved
        return f"{type(error).__qualname__}: (its traceback could not be written: {type(failure).__qualname__})\n"
