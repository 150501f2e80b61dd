"""The command line of `run_locked`: what it starts, and what of it may be shown."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from django.core.management import get_commands

from tasks.exceptions import RowlockError
from tasks.redaction import REDACTED, redact

# `--password=x`, `PASSWORD=x`, `Authorization: x`, `{"password": "x"}`
NAMED = re.compile(r"([^=:\s]+(?:=|:\s*))(.+)", re.DOTALL)
PASSWORD_IN_URL = re.compile(r"(?<=://)([^/@:\s]*:)([^/@\s]+)(?=@)")


class UnknownCommand(RowlockError, LookupError):
    """No management command has this name."""


class Word(NamedTuple):
    """One word of a command line: as it may be shown, and the secrets in it."""

    shown: str
    secrets: tuple[str, ...] = ()


def program(words: Sequence[str], *, is_shell: bool) -> list[str]:
    """The program to start, with its arguments: a management command, or with `is_shell` any program.

    A single word is then a line for the shell; several are a program and its arguments, which no shell sees. Raises
    UnknownCommand.
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


def examined(words: Sequence[str], *, is_shell: bool) -> list[Word]:
    """The command line with its secrets found: what follows a name of the setting REDACT, and passwords in URLs."""
    if not (is_shell and len(words) == 1):
        return list(_examined(words))
    parts = list(_examined(_split(words[0])))
    secrets = tuple(secret for part in parts for secret in part.secrets)
    return [Word(shlex.join(part.shown for part in parts) if secrets else words[0], secrets)]


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _examined(words: Sequence[str]) -> Iterator[Word]:
    follows_secret_name = False
    for word in words:
        named = NAMED.fullmatch(word)
        if follows_secret_name:
            yield Word(REDACTED, (word,))
        elif named and _is_secret(named[1]):
            yield Word(named[1] + REDACTED, (named[2],))
        else:
            secrets = tuple(found[2] for found in PASSWORD_IN_URL.finditer(word))
            yield Word(PASSWORD_IN_URL.sub(rf"\1{REDACTED}", word), secrets)
        follows_secret_name = word.startswith("-") and not named and _is_secret(word)


def _is_secret(name: str) -> bool:
    """Options are written with dashes, names in the setting with underscores."""
    written = name.replace("-", "_")
    return bool(redact({written: ""})[written] == REDACTED)
