"""The task functions of `tests.tasks.handlers`, declared when the worker loads its apps."""

from tests.tasks import handlers

__all__ = ["handlers"]
