"""Redact SQL statements of other sessions: one that mentions a secret is shown without its literals and comments."""

import re
from collections.abc import Iterator

from tasks.support.redaction import REDACTED, mentions_secret

# PostgreSQL's own lexer (src/backend/parser/scan.l), as far as it decides where literals begin and end. A token that
# the server has cut off reaches to the end of the text. Each alternative is possessive.
LETTER = r"A-Za-z_\x80-\U0010ffff"
TOKEN = rf"""
    (?P<line>--)[^\n\r]*+
    | (?P<block>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]|''|\\.)*+(?:'|\\?\Z))
    | (?P<text>(?:[bBnNxX]|[uU]&)?'(?:[^']|'')*+(?:'|\Z))
    | (?P<identifier>(?:[uU]&)?"(?:[^"]|"")*+(?:"|\Z))
    | (?P<dollar>\$(?P<tag>(?:[{LETTER}][{LETTER}0-9]*+)?)\$.*?(?:\$(?P=tag)\$|\Z))
    | (?P<parameter>\$[0-9]++)
    | (?P<number>\.?[0-9][{LETTER}0-9.]*+)
    | (?P<word>[{LETTER}][{LETTER}0-9$]*+)
    | (?P<other>.)
"""
BLOCK_EDGE = re.compile(r"/\*|\*/")
HIDDEN_LITERAL, HIDDEN_LINE, HIDDEN_BLOCK = f"'{REDACTED}'", f"-- {REDACTED}", f"/* {REDACTED} */"
CODED_NAME = re.compile(r'[uU]&"')  # U&"p\0061ssword" may be any name
# A key of Django's sessions is a login; a name that was typed at the login, which axes counts, may be a password.
LOGIN = re.compile(r"session_?key|django_session|axes_access", re.IGNORECASE)
SETTERS = ("set", "alter", "create")  # statements that take bare words as values: SET app.token TO hunter2


class Unsure(Exception):
    """The end of a literal depends on a session's setting that is unknown here."""


def redact_query(query: str, *, is_cut: bool = False) -> str:
    """The statement, but without any literal or comment if it names a secret (`password`, `session_key`) anywhere.

    All literals go, because any may be the secret: it may stand before the name (`'x' AS password`), inside it
    (`dblink('… password=x')`) or in another list (`INSERT … VALUES`). They also go from a truncated statement
    (`is_cut`), whose end may have the name. If a literal's end depends on standard_conforming_strings, everything is
    hidden.

    >>> redact_query("ALTER ROLE anna PASSWORD 'hunter2'")
    "ALTER ROLE anna PASSWORD '[redacted]'"
    >>> redact_query("SELECT 'shown' WHERE id = 7")
    "SELECT 'shown' WHERE id = 7"
    """
    if not (is_cut or mentions_secret(query) or LOGIN.search(query) or CODED_NAME.search(query)):
        return query
    try:
        return "".join(_redacted(query))
    except Unsure:
        return REDACTED


def _redacted(query: str) -> Iterator[str]:
    pattern = re.compile(TOKEN, re.VERBOSE | re.DOTALL)  # 12 ms at its first use, which most processes never have
    position, statement = 0, _Statement()
    while token := pattern.match(query, position):
        kind, text = token.lastgroup or "", token[0]
        position = _end_of_block(query, position) if kind == "block" else token.end()
        if kind == "text" and "\\'" in text:
            raise Unsure
        if kind in ("word", "identifier", "other"):
            yield statement.shown(kind, text)
        else:
            yield {"line": HIDDEN_LINE, "block": HIDDEN_BLOCK, "parameter": text}.get(kind, HIDDEN_LITERAL)


def _end_of_block(query: str, start: int) -> int:
    """The position after a block comment, which may be nested; the end of the text if it is not closed."""
    depth = 0
    for edge in BLOCK_EDGE.finditer(query, start):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return len(query)


class _Statement:
    """The statement read so far. After `SET name TO` and `SET name =` a bare word is a literal."""

    def __init__(self) -> None:
        self.verb = ""
        self.has_set = False
        self.is_value = False

    def shown(self, kind: str, text: str) -> str:
        word = text.lower()
        if text == ";":
            self.verb, self.has_set, self.is_value = "", False, False
        elif self.is_value and kind != "other":
            return HIDDEN_LITERAL
        elif kind == "word":
            self.verb = self.verb or word
            self.has_set = self.has_set or word == "set"
        if word in ("=", "to") and self.has_set and self.verb in SETTERS:
            self.is_value = True
        return text
