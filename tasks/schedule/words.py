"""The command line of `run_locked`: the program to start, and its redacted form."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from django.core.management import get_commands

from tasks.exceptions import RowlockError
from tasks.secret_finder import SecretFinder


class UnknownCommand(RowlockError, LookupError):
    """No management command has this name."""


def program(words: Sequence[str], *, is_shell: bool) -> list[str]:
    """The program to start, with its arguments: a management command, or with `is_shell` any program.

    With `is_shell` a single word is a line for the shell; several words are a program and its arguments, without a
    shell. Raises UnknownCommand.
    """
    if is_shell:
        return ["/bin/sh", "-c", words[0]] if len(words) == 1 else list(words)
    if words[0] not in get_commands():
        raise UnknownCommand(
            f"There is no management command {words[0]!r}: `manage.py help` lists them. For any program add --shell."
        )
    started_as = Path(sys.argv[0])
    manage = [str(started_as.resolve())] if started_as.name == "manage.py" else ["-m", "django"]
    return [sys.executable, *manage, *words]


def examined(words: Sequence[str], *, is_shell: bool) -> tuple[list[str], set[str]]:
    """The redacted command line, and the secrets found in it."""
    finder = SecretFinder()
    if not (is_shell and len(words) == 1):
        return list(finder.words(words)), finder.secrets
    parts = list(finder.words(_split(words[0])))
    return [shlex.join(parts) if finder.secrets else words[0]], finder.secrets


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
