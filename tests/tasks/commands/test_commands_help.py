"""The help of every command of ours, and what a shell completes."""

import shlex
import shutil
import subprocess
from argparse import SUPPRESS
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from tasks.commands import TerminalCommand
from tasks.commands.base import DJANGOS
from tests.commands import run

APPS = ("tasks", "orders", "dashboard")
OURS = sorted(name for name, app in get_commands().items() if app in APPS)
every_command = pytest.mark.parametrize("name", OURS)


def loaded(name):
    command = load_command_class(get_commands()[name], name)
    command._called_from_command_line = True
    return command


@every_command
def test_its_help_has_two_examples_that_parse(name):
    command = loaded(name)
    parser = command.create_parser("manage.py", name)
    assert isinstance(command, TerminalCommand)
    assert len(command.examples) == 2
    for example in command.examples:
        line = f"  python manage.py {name} {example}".rstrip()
        assert line in parser.format_help().splitlines()
        parser.parse_args(shlex.split(example.partition(" > ")[0]))


@every_command
def test_its_help_hides_the_options_of_django_that_still_work(name):
    parser = loaded(name).create_parser("manage.py", name)
    text = parser.format_help()
    assert [option for option in DJANGOS if option in text] == []
    assert "-v {0,1,2,3}" in text
    example = shlex.split(loaded(name).examples[0].partition(" > ")[0])
    options = parser.parse_args([*DJANGO_LINE, *example])
    assert (options.settings, options.traceback, options.no_color) == ("tests.settings", True, True)


DJANGO_LINE = ["--settings", "tests.settings", "--pythonpath", ".", "--traceback", "--no-color"]


def test_the_help_is_as_wide_as_the_window(monkeypatch):
    for columns in (60, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = loaded("show_locks").create_parser("manage.py", "show_locks").format_help().splitlines()
        described = [line for line in lines if "rows that operators look at" in line or "Show the sessions" in line]
        assert columns * 0.7 < max(map(len, described)) <= columns


COMPLETED = [
    ("manage.py list_t", {"list_tasks"}),
    ("python manage.py queue_st", {"queue_status"}),
    ("./manage.py list_tasks --st", {"--status"}),
    ("rowlock list_tasks --status C", {"COMPLETED", "CANCELLED"}),
    ("manage.py list_tasks --status = READ", {"READY"}),
    ("manage.py run_worker --strategy o", {"optimistic"}),
    ("manage.py run_pattern account_o", {"account_optimistic"}),
    ("manage.py queue_status --watch --max-s", {"--max-stale"}),
    ("manage.py list_tasks --limit ", set()),
    ("manage.py show_task --trace", set()),
    ("python -m ven", set()),
]


@pytest.mark.parametrize(("line", "wanted"), COMPLETED)
def test_bash_completes(script, line, wanted):
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    lines = (
        f". {script('bash')}",
        f"COMP_WORDS=({shlex.join(words)})",
        f"COMP_CWORD={len(words) - 1}",
        "_rowlock",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    )
    bash = subprocess.run(["bash", "--norc", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert (set(bash.stdout.split()), bash.stderr) == (wanted, "")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_is_sound(script, shell):
    assert shutil.which(shell), f"install {shell}"
    subprocess.run([shell, "-n", script(shell)], check=True)


def test_zsh_knows_the_same_words_as_bash(script):
    texts = {shell: Path(script(shell)).read_text().split("_rowlock() {")[0] for shell in ("bash", "zsh")}
    assert texts["bash"] == texts["zsh"]
    assert "compdef _rowlock rowlock manage.py" in Path(script("zsh")).read_text()


def test_every_option_of_every_command_is_completed(script):
    text = Path(script("bash")).read_text()
    missing = []
    for name in OURS:
        [clause] = [line for line in text.splitlines() if line.startswith(f"    '{name}')")]
        parser = loaded(name).create_parser("manage.py", name)
        options = [word.strip(",[].") for line in parser.format_help().splitlines() for word in line.split()[:1]]
        missing += [
            (name, option) for option in options if option.startswith("--") and option not in clause.split("'")[3]
        ]
    assert missing == []
    assert SUPPRESS not in text


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """Writes the script for a shell, once."""
    folder = tmp_path_factory.mktemp("completion")

    def written(shell):
        path = folder / shell
        if not path.exists():
            path.write_text(run("rowlock_completion", shell).stdout)
        return str(path)

    return written
