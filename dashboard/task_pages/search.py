"""The search box of the list of tasks: a filter written as words, `queue:billing status:failed age:>1h text`.

The words are only typed; addresses, links and actions hold the filter's query.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from django.http import QueryDict
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from tasks.operations.filters import CONDITIONS, InvalidFilter, TaskFilter

LONGEST = 2000  # characters
PIECE = re.compile(r'(?:(?P<word>[a-z]+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]+))(?=\s|$)', re.ASCII)
NEEDS_QUOTES = re.compile(r'[\s"]')
ESCAPED = re.compile(r"\\(.)")


class Word(NamedTuple):
    """A word of the box: the parameter that it sets, an example, and what it means."""

    param: str
    example: str
    meaning: str | Promise


WORDS = {
    "status": Word("status", "failed", gettext_lazy("the state: ready, running, done, failed or cancelled")),
    "queue": Word("queue", "billing", gettext_lazy("the queue")),
    "task": Word("task", "shop.tasks.charge_card", gettext_lazy("the function, with its path")),
    "error": Word("error", "CardDeclined", gettext_lazy("text in the last error")),
    "failure": Word("failure", "3fa4c1d2e5aa", gettext_lazy("the kind of failure, as the page Failures names it")),
    "age": Word("older_than", ">1h", gettext_lazy("created longer ago")),
    "id": Word("id", "4711", gettext_lazy("the number of the task")),
    "key": Word("key", "customer-7", gettext_lazy("the ordering key")),
    "worker": Word("worker", "3c48f1", gettext_lazy("the worker that holds or has completed it")),
    "due": Word("due", "later", gettext_lazy("of those that wait: due now, or later")),
}
STATES = {"running": "PROCESSING", "done": "COMPLETED"}  # what people call them
NAMES = {word.param: name for name, word in WORDS.items()}


def parse(text: str) -> TaskFilter:
    """The filter that these words stand for. Raises InvalidFilter, which names the words that there are."""
    if len(text) > LONGEST:
        raise InvalidFilter(_("The search has more than %(most)d characters: shorten it.") % {"most": LONGEST})
    query = QueryDict(mutable=True)
    free = []
    for word, value in pieces(text.strip()):
        if not word:
            free.append(value)
        elif word in WORDS:
            query.appendlist(WORDS[word].param, as_parameter(word, value))
        else:
            values = {"word": word, "words": ", ".join(WORDS), "text": f"{word}:{value}"}
            raise InvalidFilter(
                _('There is no word %(word)s. There are: %(words)s. To search for the text, quote it: "%(text)s".')
                % values
            )
    if free:
        query["q"] = " ".join(free)
    repeated = [name for name, values in query.lists() if len(values) > 1 and not may_repeat(name)]
    if repeated:
        raise InvalidFilter(_("The word %(word)s stands twice: remove one.") % {"word": NAMES[repeated[0]]})
    return TaskFilter.from_params(query)


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """Each word with its value; free text has an empty word. Raises InvalidFilter for what cannot be read."""
    at = 0
    while at < len(text):
        found = PIECE.match(text, at)
        if found is None:
            sentence = _("A quotation mark has no partner from here on: %(rest)s")
            raise InvalidFilter(sentence % {"rest": text[at : at + 60]})
        word, inside, plain = found["word"] or "", found["quoted"], found["plain"]
        if not word and plain and plain.endswith(":") and plain[:-1] in WORDS:
            values = {"word": plain, "example": WORDS[plain[:-1]].example}
            raise InvalidFilter(_("The word %(word)s has no value. Write one behind it: %(word)s%(example)s.") % values)
        yield word, plain if inside is None else ESCAPED.sub(r"\1", inside)
        at = found.end()
        at += len(text[at:]) - len(text[at:].lstrip())


def as_parameter(word: str, value: str) -> str:
    """The parameter's value. Raises InvalidFilter for an age that is not "longer than"."""
    if word == "status":
        return STATES.get(value.lower(), value)
    if word == "age" and value.startswith("<"):
        sentence = _("Only ages above a limit can be searched: write age:>%(age)s.")
        raise InvalidFilter(sentence % {"age": value[1:] or "1h"})
    return value.removeprefix(">") if word == "age" else value


def may_repeat(param: str) -> bool:
    return any(condition.param == param and condition.may_repeat for condition in CONDITIONS.values())


def written(chosen: TaskFilter) -> str:
    """The words that stand for this filter, which `parse` reads back."""
    texts = []
    for param, value in chosen.as_params():
        if param == "q":
            texts.append(value if is_plain_text(value) else quoted(value))
        elif param == "older_than":
            texts.append(f"age:>{value}")
        else:
            texts.append(f"{NAMES[param]}:{quoted(value) if NEEDS_QUOTES.search(value) else value}")
    return " ".join(texts)


def is_plain_text(text: str) -> bool:
    """True if these words mean themselves."""
    return " ".join(text.split()) == text and '"' not in text and not re.search(r"(?:^|\s)[a-z]+:", text, re.ASCII)


def quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
