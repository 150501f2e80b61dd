"""The text of a running statement as pages, commands and the lock history may show it."""

import re

from tasks import conf
from tasks.redaction import REDACTED

# Quoted, with backslashes, or between dollars; one that the server cut off reaches to the end of the text.
LITERAL = re.compile(
    r"""[eE]'(?:[^'\\]|''|\\.)*(?:'|\\?$)     # E'…'
    | '(?:[^']|'')*(?:'|$)                    # '…'
    | \$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|$)   # $tag$…$tag$
    | (?<![\w.$])\d[\w.]*                     # a number, but no parameter ($1) and no part of a name""",
    re.VERBOSE | re.DOTALL,
)


def redact_query(query: str) -> str:
    """The statement, without any of its literals when it says one of the names of REDACT (`password`) somewhere.

    Which literal belongs to the name is not for a regular expression to tell: it may stand before it (`'x' AS
    password`), within it (`dblink('… password=x')`) or in another list (`INSERT … VALUES`). So all of them go.

    >>> redact_query("ALTER ROLE anna PASSWORD 'hunter2'")
    "ALTER ROLE anna PASSWORD '[redacted]'"
    >>> redact_query("SELECT 'shown' WHERE id = 7")
    "SELECT 'shown' WHERE id = 7"
    """
    folded = query.casefold()
    if not any(name.casefold() in folded for name in conf.get("REDACT")):
        return query
    return LITERAL.sub(f"'{REDACTED}'", query)
