"""Pytest plugin (`-p tests.failures`): says what failed at once, in case somebody ends the run before its report."""

import pytest
from _pytest.terminal import TerminalReporter

LINES = 25  # of a failure; the report at the end has all of it


class AtOnce:
    """Writes below the dots."""

    def __init__(self, terminal: TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.write_line(f"FAILED {report.nodeid} ({report.when})")
            self.terminal.write_line("\n".join(report.longreprtext.splitlines()[-LINES:]))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """After the terminal was made; the processes that tests are spread over have none."""
    if terminal := config.pluginmanager.get_plugin("terminalreporter"):
        config.pluginmanager.register(AtOnce(terminal))
