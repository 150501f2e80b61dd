"""A filter of tasks: read from a URL's query, written back, counted, and harmless whatever it is given."""

import re
from datetime import timedelta

import pytest
from django.http import QueryDict

from tasks.operations.filters import InvalidFilter, TaskFilter
from tasks.support import durations
from tests.tasks import rows


def read(query):
    return TaskFilter.from_params(QueryDict(query))


def test_a_query_is_read_and_written_back():
    query = "id=7&id=4&status=failed&queue=a&queue=b&task=shop.mail&error=Time%26out&older_than=90m"
    chosen = read(query)
    assert chosen == TaskFilter(
        ids=(7, 4),
        statuses=("FAILED",),
        queue_names=("a", "b"),
        task_paths=("shop.mail",),
        error="Time&out",
        older_than=timedelta(minutes=90),
    )
    written = QueryDict(mutable=True)
    for key, value in chosen.as_params():
        written.appendlist(key, value)
    assert read(written.urlencode()) == chosen


@pytest.mark.parametrize("query", ["", "status=&queue=+&id=", "password=x&status__in=READY"])
def test_blank_and_unknown_parameters_ask_for_nothing(query):
    assert read(query).is_empty


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("id=x", "'x'"),
        ("id=0", "'0'"),
        ("id=-1", "'-1'"),
        ("id=9223372036854775808", "'9223372036854775808'"),
        ("id=%D9%A3", "not the id"),
        ("status=GONE", "READY, PROCESSING"),
        ("older_than=7", "90s, 15m"),
        ("older_than=9999999w", "hundred years"),
        ("queue=%00", "`queue`"),
    ],
)
def test_what_cannot_be_read_is_named(query, named):
    with pytest.raises(InvalidFilter, match=re.escape(named)):
        read(query)


def test_lone_surrogates_are_refused():
    params = QueryDict(mutable=True)
    params["error"] = "\udcff"
    with pytest.raises(InvalidFilter):
        TaskFilter.from_params(params)


@pytest.mark.django_db
class TestRows:
    def test_an_empty_filter_matches_every_task(self):
        tasks = {rows.ready(), rows.failed()}
        assert set(TaskFilter().queryset()) == tasks

    def test_more_ids_than_a_statement_takes_parameters(self):
        task = rows.ready()
        assert TaskFilter(ids=tuple(range(task.pk, task.pk + 70_000))).queryset().get() == task

    def test_ids_keep_the_order_in_which_they_were_named(self):
        assert list(TaskFilter.of([5, 3, 5, 4]).selected_ids()) == [5, 3, 4]

    @pytest.mark.parametrize("text", ["'; DROP TABLE tasks_task; --", "%", "_", "\\"])
    def test_text_is_data(self, text):
        rows.failed(queue_name="a")
        assert not TaskFilter(error=text).queryset().exists()
        assert not TaskFilter(queue_names=(text,)).queryset().exists()


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600), ("0s", 0)]
    )
    def test_units(self, text, seconds):
        assert durations.parse(text) == timedelta(seconds=seconds)
        assert durations.parse(durations.describe(durations.parse(text))) == timedelta(seconds=seconds)

    @pytest.mark.parametrize("text", ["", "7", "d", "-7d", "7.5d", "7 d", "1y", "٣d", "9999999999d", "7d7d"])
    def test_nonsense(self, text):
        with pytest.raises(ValueError, match=r"not a duration|hundred years"):
            durations.parse(text)
