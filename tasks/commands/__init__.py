"""What our management commands share: options, exit codes, JSON, signals, and how they speak to people."""

from tasks.commands.base import OperatorCommand, Options, Report, UsageError, operator

__all__ = ["OperatorCommand", "Options", "Report", "UsageError", "operator"]
