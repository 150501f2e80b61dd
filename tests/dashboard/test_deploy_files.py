"""docs/deploy: systemd accepts the units; what they and the compose file start are commands and variables of ours."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from django.conf import settings
from gunicorn.config import Config

from tasks import conf
from tests.tasks.schedule.test_cron_docs import ON_CALENDAR, crontab, manage, options_of


def parsed(text: str) -> configparser.ConfigParser:
    """A unit; of a key that is given twice the last."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    return unit


ROOT = settings.BASE_DIR
DEPLOY = ROOT / "docs" / "deploy"
SERVICES = {path.name: parsed(path.read_text()) for path in sorted(DEPLOY.glob("*.service"))}
TIMERS = {path.name: parsed(path.read_text()) for path in sorted(DEPLOY.glob("*.timer"))}
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if name != "database"}
CALENDAR = {**ON_CALENDAR, "*-*-* 03:15:00": "15 3 * * *", "Sun *-*-* 03:45:00": "45 3 * * 0"}
OF_GUNICORN = {"GUNICORN_CMD_ARGS", "WEB_CONCURRENCY"}
OF_COMPOSE = {"POSTGRES_PASSWORD"}


def check_command(argv: list[str]) -> None:
    """That it is one of `manage.py` with its options, or gunicorn with its own."""
    assert Path(argv[0]).name == "python"
    if argv[1:3] == ["-m", "gunicorn"]:
        assert Config().parser().parse_args(argv[3:])
        return
    assert argv[1] == "manage.py"
    options = options_of(argv[2], argv[3:])
    if argv[2] == "run_locked" and not options["shell"]:
        name, *arguments = options["words"]
        assert options_of(name, arguments)


def command_of(unit) -> list[str]:
    return [word for word in shlex.split(unit["Service"]["ExecStart"]) if word != "$OPTIONS"]


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    """Verified where their program and their user are; systemd-analyze asks for both."""
    assert shutil.which("systemd-analyze"), "systemd-analyze verifies the units: install Debian's package systemd."
    (tmp_path / "python").symlink_to(sys.executable)
    for path in [*DEPLOY.glob("*.service"), *DEPLOY.glob("*.timer")]:
        text = path.read_text().replace("/srv/rowlock/.venv/bin", str(tmp_path))
        (tmp_path / path.name).write_text(text.replace("User=rowlock", f"User={psutil.Process().username()}"))
    instances = [name.replace("@", "@1") for name in (*SERVICES, *TIMERS)]
    (tmp_path / "rowlock-worker@1.service").symlink_to(tmp_path / "rowlock-worker@.service")
    verify = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in instances)]
    verified = subprocess.run(verify, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin:/usr/sbin"})
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


@pytest.mark.parametrize("name", SERVICES)
def test_a_unit_starts_a_command_of_ours_with_few_rights(name: str) -> None:
    service = SERVICES[name]["Service"]
    check_command(command_of(SERVICES[name]))
    assert service["User"] == "rowlock"
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert service["LimitCORE"] == "0", "a core dump holds keys and passwords"


def test_a_worker_may_use_its_grace_period_and_is_watched() -> None:
    service = SERVICES["rowlock-worker@.service"]["Service"]
    grace = conf.SETTINGS["GRACE_SECONDS"].default
    assert int(service["TimeoutStopSec"]) > grace + 10
    assert int(COMPOSE["services"]["worker"]["stop_grace_period"].rstrip("s")) > grace + 10
    assert (service["Type"], service["KillSignal"], service["KillMode"]) == ("notify", "SIGTERM", "mixed")
    assert int(service["WatchdogSec"]) >= 30
    assert service["OOMPolicy"] == "continue", "or one task that takes all memory stops every worker of the unit"


def test_the_web_server_may_use_its_grace_period() -> None:
    config: dict[str, object] = {}
    exec(compile((ROOT / "gunicorn.conf.py").read_text(), "gunicorn.conf.py", "exec"), config)
    assert int(SERVICES["rowlock-web.service"]["Service"]["TimeoutStopSec"]) > config["graceful_timeout"]
    assert int(COMPOSE["services"]["web"]["stop_grace_period"].rstrip("s")) > config["graceful_timeout"]


@pytest.mark.parametrize("name", TIMERS)
def test_a_timer_starts_what_the_crontab_starts_at_the_same_times(name: str) -> None:
    service = SERVICES[name.replace(".timer", ".service")]
    lines = {tuple(word for word in manage(line) if word != "-v0"): fields for fields, line in crontab()}
    assert lines[tuple(command_of(service)[2:])] == CALENDAR[TIMERS[name]["Timer"]["OnCalendar"]]
    assert (service["Service"].get("SuccessExitStatus") == "75") == ("run_locked" in service["Service"]["ExecStart"])


def test_every_line_of_the_crontab_has_its_timer() -> None:
    assert len(TIMERS) == len(crontab())


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_the_compose_file_runs_a_command_of_ours(name: str) -> None:
    assert OURS[name]["ulimits"] == {"core": 0}
    check_command(OURS[name]["command"])
    assert OURS[name].get("depends_on", {}).keys() <= COMPOSE["services"].keys()


@pytest.mark.parametrize("name", ["database", "web", "worker"])
def test_a_container_comes_back_with_the_machine(name: str) -> None:
    """`on-failure` leaves those down that ended in order when the machine was shut down."""
    assert COMPOSE["services"][name]["restart"] == "unless-stopped"


def test_the_database_is_healthy_when_it_answers_over_the_network() -> None:
    """While the image creates the database, a server answers on the socket that `migrate` cannot reach."""
    assert "--host=127.0.0.1" in COMPOSE["services"]["database"]["healthcheck"]["test"]


def test_the_jobs_of_the_compose_file_are_those_of_the_crontab() -> None:
    lines = [[word for word in manage(line) if word != "-v0"] for _, line in crontab()]
    jobs = [service["command"][2:] for service in OURS.values() if service.get("profiles") == ["cron"]]
    assert jobs
    assert all(job in lines for job in jobs)


def test_every_variable_is_read_by_somebody() -> None:
    read = "".join(path.read_text() for app in ("dashboard", "tasks") for path in (ROOT / app).rglob("*.py"))
    compose = {name for service in OURS.values() for name in service["environment"]}
    compose |= set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text())) - OF_COMPOSE
    units = set(re.findall(r"^(\w+)=", (DEPLOY / "rowlock.env").read_text(), re.MULTILINE)) - OF_GUNICORN
    for name in compose | units:
        assert f'"{name}"' in read, name


def test_the_image_is_made_of_files_that_are_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [source for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for source in line.split()[:-1]]
    assert copied
    assert all((ROOT / source).exists() for source in copied)
    build = COMPOSE["x-rowlock"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).exists()
    check_command(yaml.safe_load(re.search(r"^CMD (.+)$", text, re.MULTILINE)[1]))


def test_the_page_on_deploying_names_files_and_numbers_that_there_are() -> None:
    text = (ROOT / "docs" / "deploying.md").read_text()
    named = set(re.findall(r"\browlock-[a-z@-]+\.(?:service|timer)\b", text))
    assert named
    assert named <= SERVICES.keys() | TIMERS.keys()
    assert all((ROOT / "docs" / path).exists() for path in re.findall(r"\]\(([\w./]+)\)", text))
    assert all((ROOT / path).exists() for path in re.findall(r"`(tests/[\w/]+\.py)`", text))
    for name in re.findall(r"`(rowlock_\w+)`", text):
        assert f"`{name}`" in (ROOT / "docs" / "metrics.md").read_text()
