"""`python -m tests.benchmarks.pages`: every page of the dashboard beside ten million tasks, and fifty open tabs.

Options (--help) say how many rows there are, which pages are asked, and in which folder the filled database is kept
for the next time. The limits on statements and locks are those of the web server: a page that meets one is told by its
status.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from tests.benchmarks.pages.scene import Sizes, crowd, filled


def main(argv: Sequence[str] = ()) -> None:
    options = parsed(argv)
    sizes = Sizes(**{field.name: getattr(options, field.name) for field in fields(Sizes)})
    if options.url:
        run(options, sizes, options.url)
        return
    with filled(sizes, options.home) as url, crowd(url, sizes):
        run(options, sizes, url)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pages", description=__doc__)
    for field in fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default, help=f"default {field.default:,}")
    parser.add_argument(
        "--home", type=Path, help="a folder that keeps the filled database; by default it is thrown away"
    )
    parser.add_argument("--url", help="a database that is filled and crowded already")
    parser.add_argument("--only", default="", help="only the pages whose name contains this; and no tabs")
    parser.add_argument("--rounds", type=int, default=20, help="requests of each page, default 20")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the tabs are open, default 20; 0: not")
    parser.add_argument("--json", type=Path, help="a file for the same figures as JSON")
    return parser.parse_args(argv)


def run(options: argparse.Namespace, sizes: Sizes, url: str) -> None:
    """Measure and print, as it comes."""
    client = set_up(url)
    from tests.benchmarks.pages import cold, report, tabs

    print(f"{report.scene_told(sizes)}\n\n{report.HEADING}", flush=True)
    pages, scenes = [], {}
    for found in cold.measure(client, options.rounds, options.only):
        pages.append(found)
        print(report.line(found), flush=True)
    if options.seconds and not options.only:
        cookie = f"sessionid={client.cookies['sessionid'].value}"
        for name, opened in (("one of each", tabs.ONE_OF_EACH), ("fifty", tabs.OPEN)):
            scenes[name] = tabs.polling(url, cookie, tabs.postmaster_of(url), options.seconds, opened)
            print(f"\n{report.tabs_told(*scenes[name], tabs.number_of(opened))}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(sizes, pages, scenes), indent=1) + "\n")


def set_up(url: str):  # type: ignore[no-untyped-def]  # Django is not there before it
    """Django on this database, and a client in which somebody with every right is logged in."""
    os.environ.update(DATABASE_URL=url, DJANGO_SETTINGS_MODULE="tests.benchmarks.pages.settings")
    import django

    django.setup()
    from django.conf import settings
    from django.test import Client

    from dashboard import serving
    from tests.people import person

    client = Client(headers={"host": "localhost"})
    client.force_login(person(username="root", is_superuser=True))
    settings.SHARED_LOOK_SECONDS = 0  # in this process alone: gunicorn has its own
    serving.freeze_garbage()  # as gunicorn's processes do
    return client
