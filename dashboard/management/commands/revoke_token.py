"""`revoke_token`: end a token of the API."""

from django.core.management.base import CommandError

from dashboard.api import tokens
from tasks.commands import OperatorCommand, Options, Report, operator, types


class Command(OperatorCommand):
    help = "End a token of the API: its next request is refused."
    examples = ("deploy", "deploy --reason 'it was in a log'")
    argument = ("name", types.name, "The token's name.")

    def run(self, options: Options) -> Report:
        if not tokens.revoke(options["name"], operator(), reason=options["reason"]):
            raise CommandError(f"There is no valid token {options['name']!r}.")
        return Report(data={"revoked": options["name"]}, text=f"Token {options['name']} is revoked.")
