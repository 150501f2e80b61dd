"""Pytest plugin (`-p tests.failures`): prints each failure at once, because the run may be ended before its report."""

import pytest
from _pytest.terminal import TerminalReporter

LINES = 25  # of a failure; the final report has all of it


class AtOnce:
    """Writes failures below the dots."""

    def __init__(self, terminal: TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.write_line(f"FAILED {report.nodeid} ({report.when})")
            self.terminal.write_line("\n".join(report.longreprtext.splitlines()[-LINES:]))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Runs after the terminal reporter is created; xdist's worker processes have none."""
    if terminal := config.pluginmanager.get_plugin("terminalreporter"):
        config.pluginmanager.register(AtOnce(terminal))
