"""The installations of the fleet: those of ROWLOCK_FLEET, and the rows that superusers keep in the admin.

Nobody else names an address, and the token of a row is encrypted with a key that is derived from SECRET_KEY.
"""

import re
from urllib.parse import urlsplit

from dashboard import conf, secrets
from dashboard.fleet.asking import TOKEN, Target
from dashboard.models import Installation
from tasks.support import reading

MOST = 500  # each is asked by a thread of its own
SEPARATORS = re.compile("[=,|]")  # of ROWLOCK_FLEET
FORM = "name=https://host|token"


def configured() -> tuple[list[Target], list[str]]:
    """The installations of ROWLOCK_FLEET, and the reasons why parts of it are none; no reason shows a token."""
    found: list[Target] = []
    faults: list[str] = []
    for place, part in enumerate(filter(str.strip, str(conf.get("FLEET")).split(",")), start=1):
        name, _equals, rest = part.strip().partition("=")
        url, _bar, token = rest.strip().rpartition("|")
        target = Target(name.strip(), url.strip().rstrip("/"), token.strip())
        if problem := problem_of(target, {other.name for other in found}):
            faults.append(f"Part {place} of ROWLOCK_FLEET is not an installation: {problem}")
        else:
            found.append(target)
    return found, faults


def problem_of(target: Target, names: set[str]) -> str:
    """The reason why this part of the setting is no installation; empty if it is one."""
    if not target.name or not target.url:
        return f"write it like {FORM}."
    if problem := name_problem(target.name) or url_problem(target.url) or token_problem(target.token):
        return problem
    return f"{reading.shown(target.name)} is named twice." if target.name in names else ""


def name_problem(name: str) -> str:
    if problem := reading.name_problem(name):
        return f"its name {problem}."
    return "its name must hold none of = , |." if SEPARATORS.search(name) else ""


def url_problem(url: str) -> str:
    """The reason why no installation can be at this address; its text is not repeated, it may hold a password."""
    try:
        parts = urlsplit(url)
        is_place = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_place = False
    if not is_place or not url.isascii() or not url.isprintable() or " " in url:
        return "its address must begin with https:// or http:// and name a host."
    return "its address must hold no user, no ? and no #." if re.search("[@?#]", url) else ""


def token_problem(token: str) -> str:
    return "" if TOKEN.fullmatch(token) else "its token is missing, or holds a blank or a character that no token has."


def kept() -> list[Target]:
    """The installations of the admin's table; one whose token no key opens has none, and says so when it is asked."""
    rows = Installation.objects.order_by("name")[:MOST]
    return [Target(row.name, row.url, opened(row.token)) for row in rows]


def opened(sealed: str) -> str:
    """The token in plain; empty if no key opens it, as after a change of SECRET_KEY without its fallback."""
    try:
        return secrets.unseal(sealed)
    except secrets.AddressLocked:
        return ""
