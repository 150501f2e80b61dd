"""What can go wrong with the embedded server; each message is fit to be the only line that a person reads."""


class ServerError(Exception):
    """The embedded PostgreSQL cannot be had."""


class HomeInUse(ServerError):
    """Another process runs a server in this home."""
