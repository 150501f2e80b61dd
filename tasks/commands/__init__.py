"""The shared part of our management commands: options, exit codes, JSON, signals and output."""

from tasks.commands.base import OperatorCommand, Options, Report, UsageError, audited, operator

__all__ = ["OperatorCommand", "Options", "Report", "UsageError", "audited", "operator"]
