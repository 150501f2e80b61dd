"""The targets that operators type."""

import signal
import sys

import pytest

from tests.dashboard import sites

STAMP = ".venv/run.stamp"


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose environment is the one that runs the tests."""
    checkout = sites.new_checkout(tmp_path / "a check out")
    (checkout.folder / ".venv").symlink_to(sys.prefix)
    return checkout


def test_run_ends_with_make_however_make_ends_and_clean_removes_what_it_kept(checkout):
    port = sites.free_port()
    # -o: nothing is to be installed into the tests' own environment
    argv = ["make", "-o", STAMP, "run", f"ARGS=--port {port} --no-demo"]
    with sites.started(checkout, argv, port) as site:
        site.says("Rowlock runs at")
        assert site.answers()
        assert site.end(signal.SIGKILL) == -signal.SIGKILL
    assert checkout.home.exists()
    assert checkout.make("clean").returncode == 0
    assert not (checkout.folder / "var").exists()
    assert not (checkout.folder / ".venv").exists()


def test_an_old_python_is_refused_with_what_to_do(checkout):
    old = checkout.folder / "old python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    refused = checkout.run("make", "clean", "PYTHON='./old python'")
    assert refused.returncode != 0
    assert "Python 3.11 or newer" in refused.stderr
    assert "make PYTHON=" in refused.stderr
    assert (checkout.folder / ".venv").exists()


def test_help_is_the_default_and_lists_the_targets(checkout):
    listed = {line.split()[0] for line in checkout.make().stdout.splitlines()}
    assert listed == {"help", "run", "test", "testnext", "lint", "chaos", "soak", "bench", "pins", "clean"}
