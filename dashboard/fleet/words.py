"""Why an installation gave no state: a label and a sentence, the same on the page and in the terminal."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from dashboard.fleet.asking import Problem

WORDS: dict[Problem, tuple[Promise, Promise]] = {
    Problem.DOWN: (_("Down"), _("No connection within 1 s: it is stopped, or the network is in the way.")),
    Problem.SILENT: (_("No answer"), _("It accepts connections and sends nothing within 1 s: frozen or overloaded.")),
    Problem.SLOW: (_("Slow"), _("It began to answer, and was not done within 1 s.")),
    Problem.CERTIFICATE: (_("Bad certificate"), _("This machine does not trust its certificate. No token was sent.")),
    Problem.PLAIN: (_("Not encrypted"), _("http:// would send the token readable to a public address: use https://.")),
    Problem.ADDRESS: (_("Refused address"), _("Its name leads to a link-local or multicast address.")),
    Problem.REFUSED: (_("Wrong token"), _("It does not accept the token: make one there with create_token.")),
    Problem.RIGHT: (_("Right missing"), _("The token may not see everything: give its user the group Viewers there.")),
    Problem.REDIRECT: (_("Redirects"), _("It answers with a redirect, which is not followed: correct the address.")),
    Problem.NO_API: (_("No API"), _("There is no API of Rowlock at this address.")),
    Problem.ERROR: (_("Error"), _("It answers with an error.")),
    Problem.GARBAGE: (_("Nonsense"), _("Its answer is not that of a Rowlock.")),
    Problem.LARGE: (_("Too large"), _("Its answer is larger than 500 kB.")),
}


def label(problem: Problem) -> str:
    return str(WORDS[problem][0])


def sentence(problem: Problem, detail: str) -> str:
    """The sentence, with what the machine said in brackets."""
    return f"{WORDS[problem][1]} ({detail})" if detail else str(WORDS[problem][1])
