"""Find secrets in JSON values, texts and command lines, and redact them for display and storage.

A value is secret when its name contains one of the names in the setting REDACT. Names are compared without case,
accents and separators (`apiKey` is `api_key` and `X-API-Key`), foreign letters by their shape.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tasks import conf

REDACTED = "[redacted]"
ENCRYPTED = "[encrypted]"
ENVELOPE = "rowlock:encrypted"  # the only name in an encrypted value; `tasks.framework.payload` writes it
LOOK_ALIKES = str.maketrans(
    "АВЕІЈКМНОРЅСТУХԚԜавгԁеһіјкӏмнорԛѕстуѵѡхүԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧαβγεηικνορτυχωցհոօսıȷɡɑɩøłđꜱʀ",
    "abeijkmhopsctyxqwabrdehijklmhopqsctyvwxywabezhikmnoptyxabyenikvoptuxwghnouijgaioldsr",
)
SEPARATORS = str.maketrans("", "", "-_")
# `{"name": "Authorization", "value": "..."}`: a name under one of the first keys, its value under one of the second.
NAME_KEYS = frozenset(
    {"name", "key", "k", "header", "field", "param", "parameter", "var", "variable", "attribute", "property", "option",
     "setting", "label", "env"}
)  # fmt: skip
VALUE_KEYS = frozenset({"value", "values", "val", "v", "content", "contents", "data", "text", "string", "default"})
WORDS_OF_CODE = frozenset({"none", "null", "true", "false", "self"})  # values that are never a secret

USER_IN_URL = re.compile(r"://[^\s/@:\"'<>]*:(?!\d{1,5}/)")  # a password or a port follows
RUN = re.compile(r"\S+")
PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<value>.*?)(?=-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
BEARER = re.compile(r"\bbearer[ ]+(?=\S*\d|\S{20})(?P<value>[\w.~+/=-]{8,})", re.IGNORECASE)
# `-pX` of mysql, but not the words of `find`; `--user me:X` of curl, but not the numbers of docker.
ATTACHED = r"-p(?!(?:ath|erm|id|rint\w*|rune)\b)"
LOGIN_OPTION = r"(?:-[uU]|--(?:proxy-)?user(?:name)?|--auth)"
LOGIN = r"(?!\d+:\d+(?:\s|$))[^\s:\"',]*:(?!//)"
UNQUOTED = r"(?P<value>\S*[^\s,;)}\]>\"'])"  # to the next blank, without brackets and quotes that close a list
BEFORE_OPTION = r"(?<![^\s\"'\[(,])"
GAP = r"[\"']?,?[\s=]?\s*[\"']?"
SECRET_WORD = re.compile(rf"(?:{ATTACHED}|{LOGIN_OPTION}[ =]?{LOGIN})(?P<value>.+)", re.DOTALL)
SECRET_WORD_IN_TEXT = re.compile(rf"{BEFORE_OPTION}(?:{ATTACHED}|{LOGIN_OPTION}{GAP}{LOGIN}){UNQUOTED}")
OPTION = re.compile(rf"{BEFORE_OPTION}(?P<name>--?[^\W\d_][\w-]*)[\"']?,?\s+[\"']?{UNQUOTED}")
PIECES = r"\w.\-\u0300-\u036f\u00ad\u200b-\u200f\u2060\ufeff"  # of a name, with accents and invisible characters
ASSIGNMENT = re.compile(
    rf"(?<![{PIECES}])(?P<name>[{PIECES}]++)(?P<closing>\\*[\"']?\]?)"
    r"[ \t]*(?P<sign>=(?![=~])>?|:(?![:/])=?)[ \t]*"
)
QUOTED = re.compile(
    r"""[bBuUrR]?(?:"(?P<double>(?:[^"\\]|\\.)*+)(?:"|\\?\Z)|'(?P<single>(?:[^'\\]|\\.)*+)(?:'|\\?\Z)"""
    r"""|(?P<quote>\\+["'])(?P<escaped>.*?)(?:(?P=quote)|\Z))""",
    re.DOTALL,
)
BRACKET = re.compile(r"[][{}]")
SCHEME = r"(?:Bearer|Basic|Digest|Token|Negotiate)[ ]+"
BARE = re.compile(rf"(?:{SCHEME})?{UNQUOTED}")
REST_OF_LINE = re.compile(r"(?P<value>[^\r\n]+)")
HEADERS = ("authorization", "cookie")  # with values of several words
ERROR_CLASS = re.compile(r".*\.[A-Z]\w*")  # before the message at a traceback's end
# Without any of these a text can hold secrets only under the names of the setting.
SIGNS = re.compile(r"://|PRIVATE KEY|(?<!\w)-[puU]|--(?:proxy-)?user|--auth|bearer", re.IGNORECASE)
NAMED_WORD = re.compile(r"([^=:\s]+(?:=|:\s*))(.+)", re.DOTALL)  # `--password=x`, `PASSWORD=x`, `Authorization: x`

MOST_TRIES = 50  # to parse JSON in a text: each try may read to the end of it
LONGEST_CACHED = 200  # characters of a name
SHORTEST_SECRET = 4  # characters: shorter secrets would match everywhere in a traceback


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; one with a repeated name is refused, because a dictionary would keep only the last."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name stands twice")
    return value


DECODER = json.JSONDecoder(object_pairs_hook=_object)


def is_sealed(value: Any) -> bool:
    """True for the value of a column that is an envelope."""
    return isinstance(value, dict) and len(value) == 1 and ENVELOPE in value


def forms(name: str) -> frozenset[str]:
    """A name for comparison: only letters and digits, in its own alphabet and by their shapes."""
    return _forms(name) if len(name) <= LONGEST_CACHED else _forms.__wrapped__(name)


@lru_cache(maxsize=10_000)
def _forms(name: str) -> frozenset[str]:
    if name.isascii():
        return frozenset({"".join(filter(str.isalnum, name.lower()))})
    plain = unicodedata.normalize("NFKD", name)
    return frozenset("".join(filter(str.isalnum, each.casefold())) for each in (plain, plain.translate(LOOK_ALIKES)))


def mentions_secret(text: str) -> bool:
    """True if the text contains one of the setting's names, a password in a URL or a private key."""
    return _mentions(text, _secret_names()) or bool(_passwords_in_urls(text) or PRIVATE_KEY.search(text))


def _secret_names() -> frozenset[str]:
    return frozenset().union(*map(forms, conf.get("REDACT"))) - {""}


def _mentions(text: str, names: Iterable[str]) -> bool:
    if text.isascii():
        readings = [text.lower().translate(SEPARATORS)]
    else:
        plain = "".join(c for c in unicodedata.normalize("NFKD", text) if unicodedata.category(c) not in ("Mn", "Cf"))
        readings = [each.casefold().translate(SEPARATORS) for each in (plain, plain.translate(LOOK_ALIKES))]
    return any(name in reading for name in names for reading in readings)


class SecretFinder:
    """Copies values without their secrets; `secrets` collects the removed texts."""

    def __init__(self) -> None:
        self.names = _secret_names()
        self.secrets: set[str] = set()

    def is_secret(self, name: str) -> bool:
        """True if a value with this name is secret."""
        return any(secret in form for form in forms(name) for secret in self.names)

    def hide(self, value: Any) -> str:
        """Collect every text and number in the value; returns the replacement."""
        self.secrets.update(_leaves(value))
        return REDACTED

    def copy(self, value: Any) -> Any:
        """Copy a JSON value with every secret replaced at any depth, and an encrypted one by a word."""
        if is_sealed(value):
            return ENCRYPTED
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return self._list(value)
        return self.text(value) if isinstance(value, str) else value

    def words(self, words: Sequence[str]) -> Iterator[str]:
        """A command line, word by word, with values after a secret name, or assigned to one, replaced."""
        option = ""
        for word in words:
            named = None if word.startswith(("{", "[")) else NAMED_WORD.fullmatch(word)
            if option and self.is_secret(option):
                yield self.hide(word)
            elif named and self.is_secret(named[1]):
                yield named[1] + self.hide(named[2])
            else:
                before = f"{option} " if re.fullmatch(LOGIN_OPTION, option) else ""
                found = SECRET_WORD.fullmatch(before + word)
                yield self._without_value(found)[len(before) :] if found else self.text(word)
            option = word if word.startswith("-") and not named else ""

    def text(self, text: str) -> str:
        """The text without passwords in URLs, private keys, and values of secret names."""
        names_one = _mentions(text, self.names)
        if not names_one and not SIGNS.search(text):
            return text
        try:
            text, is_whole = self._json_in(text)
        except RecursionError:
            return self.hide(text)
        if is_whole:
            return text
        text = self._without(text, _passwords_in_urls(text))
        for pattern in (PRIVATE_KEY, BEARER, SECRET_WORD_IN_TEXT):
            text = pattern.sub(self._without_value, text)
        if names_one:
            text = OPTION.sub(
                lambda found: self._without_value(found) if self.is_secret(found["name"]) else found[0], text
            )
            text = self._without(text, self._assigned(text))
        return text

    def _mapping(self, value: Mapping[str, Any]) -> dict[str, Any]:
        items = {str(key): item for key, item in value.items()}
        names = (item for key, item in items.items() if isinstance(item, str) and forms(key) & NAME_KEYS)
        is_named = any(map(self.is_secret, names))
        shown = {}
        for key, item in items.items():
            is_hidden = self.is_secret(key) or (is_named and forms(key) & VALUE_KEYS)
            shown[self.text(key)] = self.hide(item) if is_hidden else self.copy(item)
        return shown

    def _list(self, items: Sequence[Any]) -> list[Any]:
        if all(isinstance(item, str) for item in items) and any(item.startswith("-") for item in items):
            return list(self.words(items))
        return list(map(self._pair_or_copy, items))

    def _pair_or_copy(self, item: Any) -> Any:
        """Copy the item; it may be `["Authorization", "..."]` in a list of headers."""
        if isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str):
            name, value = item
            return [self.text(name), self.hide(value) if self.is_secret(name) else self.copy(value)]
        return self.copy(item)

    def _json_in(self, text: str) -> tuple[str, bool]:
        """The text with its JSON objects and arrays redacted; True if the whole text is one of them."""
        parts, done, read, tries = [], 0, 0, 0
        for found in re.finditer(r"[{[]", text):
            start = found.start()
            if start < read or tries == MOST_TRIES:
                continue
            try:
                value, read = DECODER.raw_decode(text, start)
            except ValueError:
                tries += 1
                continue
            shown = self.copy(value)
            written = text[start:read] if shown == value else json.dumps(shown, ensure_ascii=False)
            if not text[:start].strip() and not text[read:].strip():
                return written, True
            parts += [text[done:start], written]
            done = read
        return "".join([*parts, text[done:]]), False

    def _without_value(self, found: re.Match[str]) -> str:
        start, end = (place - found.start() for place in found.span("value"))
        return found[0][:start] + self._hidden(found["value"]) + found[0][end:]

    def _without(self, text: str, places: Iterable[tuple[int, int]]) -> str:
        parts, done = [], 0
        for start, end in places:
            parts += [text[done:start], self._hidden(text[start:end])]
            done = end
        return "".join([*parts, text[done:]])

    def _assigned(self, text: str) -> Iterator[tuple[int, int]]:
        """Spans of the values in `password=x`, `"password": "x"`, `Authorization: Bearer x`."""
        done = 0
        for found in ASSIGNMENT.finditer(text):
            if found.start() >= done and self._names_value(found) and (value := self._value(found, text)):
                done = value[1]
                yield value

    def _names_value(self, found: re.Match[str]) -> bool:
        """True for a secret name. Before a bare colon it must end with one: `TokenExpired: ...` is an error."""
        name = found["name"]
        if found["sign"] == ":" and not found["closing"] and not QUOTED.match(found.string, found.end()):
            ends = [form.removesuffix("s") for form in forms(name)]
            is_named = any(end.endswith(secret.removesuffix("s")) for end in ends for secret in self.names)
            return is_named and not ERROR_CLASS.fullmatch(name)
        return self.is_secret(name)

    def _value(self, found: re.Match[str], text: str) -> tuple[int, int] | None:
        start = found.end()
        if quoted := QUOTED.match(text, start):
            return quoted.span(next(kind for kind in ("double", "single", "escaped") if quoted[kind] is not None))
        if text[start : start + 1] in ("[", "{"):
            return start, _closing(text, start)
        is_header = found["sign"] == ":" and any(form.endswith(HEADERS) for form in forms(found["name"]))
        value = (REST_OF_LINE if is_header else BARE).match(text, start)
        return value.span("value") if value else None

    def _hidden(self, value: str) -> str:
        return value if value in (REDACTED, REDACTED[:-1]) else self.hide(value)


def _passwords_in_urls(text: str) -> list[tuple[int, int]]:
    """The span of each password: up to the last @ before a blank, because some passwords are not escaped."""
    found = []
    for run in RUN.finditer(text) if "://" in text else ():
        user, end = USER_IN_URL.search(run[0]), run[0].rfind("@")
        if user and user.end() < end:
            found.append((run.start() + user.end(), run.start() + end))
    return found


def _closing(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`; the text's end if none does."""
    depth = 0
    for found in BRACKET.finditer(text, start):
        depth += 1 if found[0] in "[{" else -1
        if not depth:
            return found.end()
    return len(text)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool) and str(value).lower() not in WORDS_OF_CODE:
        yield str(value)
        yield re.sub(rf"\A{SCHEME}", "", str(value))


def redact(value: Any) -> Any:
    """Copy a JSON value, or a text, with every secret replaced at any depth."""
    return SecretFinder().copy(value)


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, in any form in which Python or JSON writes them; short ones stay."""
    written: set[str] = set()
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            written |= {secret, repr(secret)[1:-1], ascii(secret)[1:-1], json.dumps(secret)[1:-1]}
    for form in sorted(written, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    return text
