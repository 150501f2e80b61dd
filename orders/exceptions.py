"""Errors about money; an exception's docstring is its default message."""

from tasks.exceptions import Busy, RowlockError


class AccountError(RowlockError):
    """The account operation was refused; nothing was changed."""


class InvalidAmount(AccountError, ValueError):
    """The amount must be a positive Decimal with at most two decimals."""


class SameAccount(AccountError):
    """An account cannot transfer to itself."""


class UnknownAccount(AccountError):
    """There is no such account."""


class InsufficientFunds(AccountError):
    """The balance does not cover the amount; nothing was changed."""


class BalanceTooLarge(AccountError):
    """The new balance would not fit into numeric(12,2); nothing was changed."""


class Contended(Busy):
    """Others changed the account at every try; nothing was changed. Try again, or use the pessimistic strategy."""
