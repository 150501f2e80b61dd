"""Orders and accounts in the admin."""

from orders import account_admin, order_admin  # noqa: F401  register their models
