"""`create_token`: make a token of the API and print it once."""

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.management.base import CommandError, CommandParser
from django.db import IntegrityError

from dashboard.api import tokens
from tasks.commands import OperatorCommand, Options, Report, operator, types


class Command(OperatorCommand):
    help = (
        "Make a token of the API and print it, once: it is kept as a hash. It may do what its user may, or of that "
        "only what --group may."
    )
    examples = ("deploy --user ci --group Viewers --expires 90d", "incident-bot --user bot")
    argument = ("name", types.name, "Its name, in the audit and for `revoke_token`.")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--user", required=True, type=types.text, metavar="U", help="Whose rights it has.")
        parser.add_argument("--group", type=types.text, metavar="G", help="Only the rights of this group too.")
        parser.add_argument("--expires", type=types.duration, metavar="90d", help="How long it is valid.")

    def run(self, options: Options) -> Report:
        users = get_user_model()
        user = users._default_manager.filter(**{users.USERNAME_FIELD: options["user"]}).first()
        if user is None or not user.is_active or not getattr(user, "is_staff", False):
            raise CommandError(f"There is no active member of staff {options['user']!r}: make one in the admin.")
        group = Group.objects.filter(name=options["group"]).first() if options["group"] else None
        if options["group"] and group is None:
            names = ", ".join(Group.objects.order_by("name").values_list("name", flat=True))
            raise CommandError(f"There is no group {options['group']!r}: choose one of {names}.")
        try:
            secret = tokens.create(options["name"], user, operator(), group=group, lasts=options["expires"])
        except IntegrityError as error:
            raise CommandError(f"A token {options['name']!r} exists: take another name.") from error
        return Report(data={"name": options["name"], "token": secret}, text=secret)
