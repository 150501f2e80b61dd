"""The shared part of our management commands: options, exit codes, JSON, signals and output."""

from tasks.commands.base import (
    ChangeCommand,
    OperatorCommand,
    Options,
    Report,
    TerminalCommand,
    UsageError,
    audited,
    operator,
)

__all__ = [
    "ChangeCommand",
    "OperatorCommand",
    "Options",
    "Report",
    "TerminalCommand",
    "UsageError",
    "audited",
    "operator",
]
