"""The tables that handlers write; `subject.py` makes them."""

from django.db import models


class Counter(models.Model):
    id = models.BigIntegerField(primary_key=True)
    n = models.IntegerField()

    class Meta:
        managed = False
        db_table = "counter"

    def __str__(self) -> str:
        return f"{self.pk}: {self.n}"


class Entry(models.Model):
    counter_id = models.BigIntegerField()

    class Meta:
        managed = False
        db_table = "entry"

    def __str__(self) -> str:
        return f"of {self.counter_id}"
