"""Encrypt what handlers are called with, return and keep as checkpoints, where ROWLOCK_PAYLOAD_KEYS is set.

The jsonb columns stay as they are and hold an envelope, `{"rowlock:encrypted": "gAAAA…"}`: of a call in `kwargs`,
beside empty `args`. No parameter of a Python function has such a name, so plain rows, as SQL writes them, need no mark.
The tokens are Fernet's (https://github.com/fernet/spec): AES-128-CBC, signed, with the time of writing in plain.
"""

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from tasks import conf
from tasks.compat import Task
from tasks.exceptions import PayloadLocked
from tasks.framework import declaration
from tasks.framework.arguments import Call
from tasks.support.redaction import ENVELOPE, is_sealed

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

NO_CALL = "[[],{}]"


def keys() -> tuple[str, ...]:
    """The configured keys, newest first; none: payloads are stored in plain."""
    return tuple(conf.get("PAYLOAD_KEYS"))


def problem() -> str:
    """The reason why the configured keys cannot be used; empty if they can, or if there are none."""
    try:
        if keys():
            _ring(keys())
    except ImproperlyConfigured as error:
        return str(error)
    return ""


def seals(task: Task) -> bool:
    """True if what this task is called with and returns is encrypted: there are keys, and no page reads it."""
    return bool(conf.get("PAYLOAD_KEYS")) and not declaration.is_internal(task.module_path)


def sealed(text: str) -> str:
    """JSON text in an envelope under the newest key. `null` stays as it is: nothing was returned."""
    if text == "null":
        return text
    return f'{{"{ENVELOPE}":"{_ring(keys()).encrypt(text.encode()).decode()}"}}'


def sealed_call(call: Call) -> Call:
    """The call with its JSON in an envelope. A call without arguments has nothing to hide."""
    return call if call.json == NO_CALL else call._replace(json=f"[[],{sealed(call.json)}]")


def opened(value: Any) -> Any:
    """The JSON value of a column, decrypted if it is an envelope. Raises PayloadLocked if no key opens it."""
    if not is_sealed(value):
        return value
    known = keys()
    if not known:
        raise PayloadLocked("It is encrypted, and no key is set here: set ROWLOCK_PAYLOAD_KEYS as its writer has it.")
    ring = _ring(known)
    from cryptography.fernet import InvalidToken  # an optional requirement, imported only where keys are set

    try:
        return json.loads(ring.decrypt(str(value[ENVELOPE]).encode(errors="replace")))
    except InvalidToken as error:
        raise PayloadLocked from error


def opened_call(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in the columns of a task or schedule, decrypted. Raises PayloadLocked if no key opens them."""
    if not is_sealed(kwargs):
        return args, kwargs
    found_args, found_kwargs = opened(kwargs)
    return found_args, found_kwargs


@lru_cache(maxsize=4)
def _ring(known: tuple[str, ...]) -> "MultiFernet":
    try:
        from cryptography.fernet import Fernet, MultiFernet
    except ImportError as error:
        raise ImproperlyConfigured(
            "ROWLOCK_PAYLOAD_KEYS needs the package cryptography: install rowlock[encryption]."
        ) from error
    ring = []
    for place, key in enumerate(known, start=1):
        try:
            ring.append(Fernet(key))
        except ValueError as error:  # the key itself is never shown
            raise ImproperlyConfigured(
                f"Key {place} in ROWLOCK_PAYLOAD_KEYS is not 32 bytes in URL-safe base64: make one with "
                '`python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"`.'
            ) from error
    return MultiFernet(ring)
