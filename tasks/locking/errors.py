"""PostgreSQL's errors about conflicts with other sessions, by SQLSTATE."""

LOCK_NOT_AVAILABLE = "55P03"
SERIALIZATION_FAILURE = "40001"
DEADLOCK_DETECTED = "40P01"


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a database error, Django's or psycopg's; None for anything else."""
    return getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)


def is_lock_not_available(error: BaseException) -> bool:
    """True if another session holds the row and the wait was refused or timed out."""
    return sqlstate(error) == LOCK_NOT_AVAILABLE


def is_retryable(error: BaseException) -> bool:
    """True if the whole transaction can be repeated."""
    return sqlstate(error) in (SERIALIZATION_FAILURE, DEADLOCK_DETECTED)
