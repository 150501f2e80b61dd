"""The targets that operators type; `run` and `clean` at work are in test_up_running.py."""

import sys

import pytest

from tests.dashboard import sites


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose environment is the one that runs the tests."""
    checkout = sites.new_checkout(tmp_path / "a check out")
    (checkout.folder / ".venv").symlink_to(sys.prefix)
    return checkout


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
    targets = "help run test testnext lint chaos soak bench pins sbom audit clean"
    assert listed == set(targets.split())
