"""No text takes longer to read than in proportion to its length: a hostile one would keep a page or a worker busy."""

import contextlib
import time

import pytest

from dashboard.locks import identity
from dashboard.task_pages import failure, search
from tasks.support.durations import parse
from tasks.support.reading import one_line
from tasks.support.redacted_sql import redact_query
from tasks.support.redaction import SecretFinder, redact, redact_text

LENGTH, TIMES = 4000, 8
MOST = 3 * TIMES  # a reader that compares each place with all others takes TIMES squared as long
TOO_SHORT_SECONDS = 0.002  # to be measured
ATTEMPTS = 5  # a collection of garbage may have fallen into one

UNITS = [
    "a", "a ", "a.", "a=", "a:", "a@", "a,", "a;", "a\n", "a\\", "é", "\u0300", "a\u200b", "0", "1.", "1e", "\t", "<",
    "://", "://a", "://a:", "-p", "-a ", "--a-", "-u a", "--user ", "--user a:", "bearer ", "bearer a", "Bearer ",
    "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", '"', "\\", '\\"', "'", '"a" ', "[", "]", "{", '{"a":', "[[", "(",
    "password", "password=", "password: ", 'password="', 'password=\\"', "password=a ", "Authorization: ", '{"name": ',
    "$$", "$a$", "/*", "*/", "/* */", "--\n", "e'", 'U&"', "=>", ":=", "set a to ", "a.B", "a.a:", "word:", 'word:"',
    '  File "', '  File "a", line 1, in b\n',
]  # fmt: skip
READERS = {
    "a value": lambda text: redact({"a": text, "b": text.split(" ")}),
    "a text": lambda text: SecretFinder().text(text),
    "words": lambda text: list(SecretFinder().words(text.split(" "))),
    "a traceback": lambda text: redact_text(text, ["hunter2", "swordfish"]),
    "its frames": lambda text: [failure.place_of(text), *failure.folded(text)],
    "a statement": redact_query,
    "a statement that is cut": lambda text: redact_query(text, is_cut=True),
    "its author": lambda text: [identity.split(text), identity.split_task(text), identity.identify(text)],
    "a search": search.parse,
    "a duration": parse,
    "a line": one_line,
}


def seconds(reader, text):
    began = time.thread_time()  # without what other processes take
    with contextlib.suppress(ValueError):  # refused, which must be as quick
        reader(text)
    return time.thread_time() - began


def is_slow(reader, unit):
    """True if the long text took more than MOST times as long as the short one, again and again."""
    short, long = (unit * (length // len(unit)) for length in (LENGTH, LENGTH * TIMES))
    for _ in range(ATTEMPTS):
        took = seconds(reader, long)
        if took < TOO_SHORT_SECONDS or took < MOST * seconds(reader, short):
            return False
    return True


@pytest.mark.parametrize("name", READERS)
def test_a_text_that_is_so_many_times_as_long_takes_no_more_times_as_long(name):
    assert [unit for unit in UNITS if is_slow(READERS[name], unit)] == []


def test_a_reader_that_compares_each_place_with_all_others_is_found():
    assert is_slow(lambda text: [text.count("ab", place) for place in range(0, len(text), 8)], "ab")
