"""The database's clock, the only one that counts: other machines' clocks may differ (fault F12)."""

from typing import ClassVar

from django.db import models


class StatementTimestamp(models.Func):
    """PostgreSQL's clock at the start of this statement; `now()` does not advance inside a transaction."""

    function = "statement_timestamp"
    output_field: ClassVar[models.Field] = models.DateTimeField()
