"""Errors of the embedded server; each message can stand alone as the only line that a person reads."""


class ServerError(Exception):
    """The embedded PostgreSQL is unavailable."""


class HomeInUse(ServerError):
    """Another process runs a server in this home."""
