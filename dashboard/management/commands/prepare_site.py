"""`prepare_site`: migrate, collect static files and create the superuser; `up` runs it at every start."""

import argparse
import json
import os
import secrets
import sys
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandParser

from dashboard import project
from tasks.commands import TerminalCommand
from tasks.commands.base import explained
from tasks.support.database import short_lock_waits

HELP = """Migrates the database, collects static files, creates the superuser `admin` unless there is a superuser
(password: ADMIN_PASSWORD, or a generated one that is printed this once), and loads demo data with --demo, once."""


class Command(TerminalCommand):
    help = HELP
    examples = ("", "--demo --json")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--demo", action=argparse.BooleanOptionalAction, default=False, help="Load demo data once.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object on stdout, the rest on stderr.")

    def handle(self, *args: Any, **options: Any) -> None:
        project.refuse_elsewhere("In yours, run `migrate`, `createsuperuser` and `collectstatic`.")
        messages = sys.stderr if options["json"] else sys.stdout
        with short_lock_waits(), explained():
            call_command("migrate", interactive=False, verbosity=options["verbosity"], stdout=messages)
            call_command("collectstatic", interactive=False, verbosity=0)
            report = {**create_admin(), "demo_tasks": load_demo() if options["demo"] else 0}
        if options["json"]:
            self.stdout.write(json.dumps(report))
        elif options["verbosity"]:
            self.stdout.write(", ".join(f"{name}: {value}" for name, value in report.items()))


def create_admin() -> dict[str, str]:
    """Create `admin` unless there is a superuser. Returns where the password comes from, and a generated one."""
    users = get_user_model()._default_manager
    if users.filter(username="admin").exists():
        return {"login": "kept"}
    if users.filter(is_superuser=True).exists():
        return {"login": "others"}
    given = os.environ.get("ADMIN_PASSWORD")
    password = given or secrets.token_urlsafe(12)
    users.create_superuser("admin", password=password)
    return {"login": "given"} if given else {"login": "generated", "password": password}


def load_demo() -> int:
    """Load the demo's rows once. Returns the number of tasks."""
    from dashboard.demo import director  # which needs the app of orders

    return director.load_once()
