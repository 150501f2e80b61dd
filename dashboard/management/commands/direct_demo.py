"""`direct_demo`: run the demo's director; `up` starts it."""

from typing import Any

import psycopg
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError

from dashboard.demo import control
from tasks.commands import TerminalCommand

HELP = """Keeps the demo alive for 15 minutes: enqueues two tasks a second, lets sessions wait for each other, and
kills workers of its own. Ends by itself, with TERM, or with `manage.py demo --stop`. Needs the demo's data."""


class Command(TerminalCommand):
    help = HELP
    examples = ("", "-v0")

    def handle(self, *args: Any, **options: Any) -> None:
        if not control.state().is_loaded:
            raise CommandError("The demo's data are not there: `manage.py prepare_site --demo` loads them.")
        from dashboard.demo.director import AlreadyDirected, Director  # which needs the app of orders

        try:
            Director().run()
        except AlreadyDirected:
            self.stdout.write("The demo of this database has a director already.")
        except (psycopg.OperationalError, DatabaseError, InterfaceError) as error:
            raise CommandError(f"The database went away: {' '.join(str(error).split())}") from error
