"""Orders and accounts in the admin."""

from orders import account_admin  # noqa: F401  registers accounts
