"""docs/cron.md is read and checked: every line means what it says, and is one that the commands accept."""

import configparser
import itertools
import re
import shlex
from datetime import datetime, timedelta

import pytest
from django.conf import settings
from django.core.management import get_commands, load_command_class

from tasks.schedule import runner
from tasks.support import durations
from tests.commands import run

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = (settings.BASE_DIR / "docs" / "cron.md").read_text()
RANGES = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]  # minute, hour, day, month, weekday
TWO_WEEKS = timedelta(days=15)
ON_CALENDAR = {"*:0/5": "*/5 * * * *", "*-*-* 02:00:00": "0 2 * * *"}  # as `systemd-analyze calendar` explains them


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def crontab():
    """The lines of the crontab that start something: their five fields, and the command."""
    [block] = blocks("crontab")
    lines = [line for line in block.splitlines() if line and not line.startswith("#") and "=" not in line.split()[0]]
    return [(" ".join(line.split()[:5]), line.split(maxsplit=5)[5]) for line in lines]


def units():
    """The unit files, by name."""
    found = re.findall(r"^`/etc/systemd/system/(\S+)`:\n\n```ini\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return {name: parsed(text) for name, text in found}


def parsed(text):
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read_string(text)
    return unit


def matches(field, value, lowest, highest):
    """Whether a value is among those of one field of a crontab: `*`, `*/5`, `7`, `1-5`, and lists of these."""
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, last = (lowest, highest) if span == "*" else [int(end) for end in (span.split("-") * 2)[:2]]
        assert lowest <= first <= last <= highest, field
        if first <= value <= last and (value - first) % int(step or 1) == 0:
            return True
    return False


def rhythm(fields):
    """The longest time between two starts of one line."""
    at, starts = datetime(2026, 1, 1), []  # noqa: DTZ001  a crontab knows no zone
    while at < datetime(2026, 1, 1) + TWO_WEEKS:  # noqa: DTZ001
        values = [at.minute, at.hour, at.day, at.month, at.isoweekday() % 7]
        if all(matches(*field) for field in zip(fields.split(), values, *zip(*RANGES, strict=True), strict=True)):
            starts.append(at)
        at += timedelta(minutes=1)
    return max(later - earlier for earlier, later in itertools.pairwise(starts))


def options_of(name, argv):
    command = load_command_class(get_commands()[name], name)
    return vars(command.create_parser("manage.py", name).parse_args(argv))


def manage(command_line):
    """The arguments of `manage.py` in a line."""
    argv = shlex.split(command_line)
    return argv[argv.index("manage.py") + 1 :]


def check_run_locked(argv, every):
    options = options_of("run_locked", argv)
    assert options["expect_every"] == every, f"{durations.describe(every)} between two starts"
    name, *arguments = options["words"]
    if not options["shell"]:
        assert options_of(name, arguments)
    assert runner.program(options["words"], is_shell=options["shell"])
    assert run("run_locked", "--dry-run", *argv).status == 0


@pytest.mark.parametrize(("fields", "command_line"), crontab())
def test_a_line_of_the_crontab(fields, command_line):
    assert not re.search(r"(?<!\\)%", command_line), "cron takes % for the end of the line"
    assert command_line.startswith("cd /srv/rowlock && .venv/bin/python manage.py ")
    name, *argv = manage(command_line)
    if name == "run_locked":
        check_run_locked(argv, rhythm(fields))
    else:
        assert options_of(name, argv)


def test_the_crontab_has_one_name_for_each_command():
    names = [manage(line)[1] for _, line in crontab() if manage(line)[0] == "run_locked"]
    assert len(names) == len(set(names)) == 4


@pytest.mark.parametrize("name", [name for name in units() if name.endswith(".service")])
def test_a_service_and_its_timer(name):
    service, timer = units()[name], units()[name.replace(".service", ".timer")]
    python, script, command, *argv = shlex.split(service["Service"]["ExecStart"])
    assert (python, script, command) == ("/srv/rowlock/.venv/bin/python", "manage.py", "run_locked")
    assert service["Service"]["Type"] == "oneshot"
    assert service["Service"]["SuccessExitStatus"] == "75"
    assert service["Service"]["KillMode"] == "mixed"
    assert name == f"rowlock-{argv[0]}.service"
    assert timer["Install"]["WantedBy"] == "timers.target"
    check_run_locked(argv, rhythm(ON_CALENDAR[timer["Timer"]["OnCalendar"]]))


def test_every_timer_has_its_service():
    names = set(units())
    assert {name.replace(".timer", ".service") for name in names} <= names
    assert len(names) == 4


@pytest.mark.parametrize(
    ("fields", "minutes"),
    [("*/5 * * * *", 5), ("0,30 * * * *", 30), ("15 3 * * *", 1440), ("0 3 * * 0", 10080), ("0 8-10 * * *", 1320)],
)
def test_the_reading_of_a_crontab_is_right(fields, minutes):
    assert rhythm(fields) == timedelta(minutes=minutes)
