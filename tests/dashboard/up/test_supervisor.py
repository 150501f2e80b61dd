"""The supervisor of `up` with small programs: output, restarts, growing delays, and how it stops them."""

import asyncio
import contextlib
import io
import signal
import sys

import psutil
import pytest

from dashboard.embedded.server import ends_within
from dashboard.up import supervisor as supervising
from dashboard.up.supervisor import Console, Program, Supervisor

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
POLITE = """
import signal, sys, time
def end(*_): print('ending', flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, end); print('ready', flush=True); signal.pause()
"""


def python(code, name="child"):
    return Program(name, [sys.executable, "-c", code])


@pytest.fixture
def output():
    return io.StringIO()


@pytest.fixture
def supervisor(output):
    return Supervisor(Console(output), patience_seconds=0.2)


async def until(text, output):
    async with asyncio.timeout(15):
        while text not in output.getvalue():
            await asyncio.sleep(0.01)


def test_every_line_of_a_program_is_shown_behind_its_name(supervisor, output):
    code = r"import os, sys; os.write(1, b'one\ntwo \xff\n'); os.write(2, b'x' * 200_000)"
    assert asyncio.run(supervisor.run(python(code))) == 0
    assert output.getvalue().splitlines() == ["child    | one", "child    | two �", "child    | " + "x" * 200_000]


def test_standard_output_can_be_kept_apart(supervisor, output, tmp_path):
    with (tmp_path / "answer").open("wb") as answer:
        code = "import sys; print('answer'); print('shown', file=sys.stderr)"
        assert asyncio.run(supervisor.run(python(code), stdout=answer)) == 0
    assert (tmp_path / "answer").read_text() == "answer\n"
    assert output.getvalue() == "child    | shown\n"


def test_what_dies_is_started_again_with_growing_delays_and_that_is_said(supervisor, output, monkeypatch):
    monkeypatch.setattr(supervising, "BACKOFF_SECONDS", (0.01, 0.02, 0.03))

    async def scenario():
        keeping = asyncio.create_task(supervisor.keep(python("raise SystemExit(3)")))
        await until("in 0.03 s", output)
        supervisor.on_signal(signal.SIGTERM)
        await keeping

    asyncio.run(scenario())
    said = [line.partition(" | ")[2] for line in output.getvalue().splitlines()]
    assert said[:2] == [f"child ended (exit status 3); starting it again in {delay} s" for delay in (0.01, 0.02)]


def test_who_ran_for_long_begins_with_the_first_delay(supervisor, output, monkeypatch):
    monkeypatch.setattr(supervising, "BACKOFF_SECONDS", (0.01, 60))
    monkeypatch.setattr(supervising, "STABLE_SECONDS", 0)

    async def scenario():
        keeping = asyncio.create_task(supervisor.keep(python("")))
        async with asyncio.timeout(15):
            while output.getvalue().count("in 0.01 s") < 3:
                await asyncio.sleep(0.01)
        supervisor.on_signal(signal.SIGTERM)
        await keeping

    asyncio.run(scenario())
    assert "in 60 s" not in output.getvalue()


def test_the_first_signal_lets_a_program_end_in_its_own_way(supervisor, output):
    assert asyncio.run(stopped(supervisor, output, POLITE)) == []
    assert "child    | ending" in output.getvalue()
    assert "killing" not in output.getvalue()


def test_a_program_that_does_not_end_is_killed(supervisor, output):
    assert asyncio.run(stopped(supervisor, output, DEAF)) == []
    assert "still running after 0.2 s: killing it" in output.getvalue()


def test_a_second_signal_kills_at_once(output, monkeypatch):
    monkeypatch.setattr(supervising, "ECHO_SECONDS", 0)
    patient = Supervisor(Console(output), patience_seconds=600)
    assert asyncio.run(stopped(patient, output, DEAF, signals=2)) == []
    assert patient.hurried_by == signal.SIGTERM


def test_a_signal_that_make_passes_on_as_well_is_one_signal(supervisor, output):
    assert asyncio.run(stopped(supervisor, output, POLITE, signals=2)) == []
    assert supervisor.hurried_by is None
    assert "child    | ending" in output.getvalue()


async def stopped(supervisor, output, code, signals=1):
    """Runs a program, stops it once it is ready; the tasks that are then still there."""
    keeping = asyncio.create_task(supervisor.keep(python(code)))
    await until("ready", output)
    for _ in range(signals):
        supervisor.on_signal(signal.SIGTERM)
    async with asyncio.timeout(15):
        await supervisor.wind_down([keeping])
    return [] if keeping.done() else [keeping]


def test_a_program_asked_for_while_stopping_does_not_run_on(supervisor):
    async def scenario():
        supervisor.on_signal(signal.SIGTERM)
        async with asyncio.timeout(15):
            return await supervisor.run(python("import signal; signal.pause()"))

    assert asyncio.run(scenario()) == -signal.SIGTERM


def test_what_a_dead_program_left_of_its_group_is_killed(supervisor, output):
    code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {DEAF!r}], stdout=-3).pid)"
    asyncio.run(supervisor.run(python(code)))
    with contextlib.suppress(psutil.NoSuchProcess):
        assert ends_within(psutil.Process(int(output.getvalue().split()[-1])), 10)


def test_names_are_coloured_on_a_terminal_alone(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    Console(terminal).line("web", "text")
    assert terminal.getvalue() == "\x1b[36mweb      |\x1b[0m text\n"
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    Console(plain).line("web", "text")
    assert plain.getvalue() == "web      | text\n"
