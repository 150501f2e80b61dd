"""Arguments: what is accepted comes back from PostgreSQL equal; the rest is refused before, with its place."""

import enum
import json
import math
import uuid
from collections import UserDict, UserList
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import DataError, connection, transaction
from django.utils.translation import gettext_lazy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tasks.exceptions import InvalidArguments
from tasks.framework import arguments
from tasks.models import Task
from tests.tasks import handlers

ECHO = "SELECT %(text)s::jsonb::text"

numbers = st.integers(-(10**40), 10**40) | st.floats().map(lambda number: number + 0.0)  # jsonb has no -0.0
texts = st.text(st.characters(), max_size=10)  # lone surrogates included
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(texts, children, max_size=4),
    max_leaves=12,
)


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def nested(levels: int) -> list:
    value: list = []
    for _ in range(levels - 1):
        value = [value]
    return value


def stored(text: str) -> str:
    """What PostgreSQL makes of a JSON text; a refusal leaves the test's transaction whole."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(ECHO, {"text": text})
        return cursor.fetchone()[0]


def sorted_text(value: object) -> str:
    """Tells 1 from 1.0, which are equal; jsonb keeps keys in an order of its own."""
    return json.dumps(value, sort_keys=True)


@pytest.mark.django_db
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(args=st.lists(values, max_size=4), kwargs=st.dictionaries(texts, values, max_size=4))
@example(args=[1e16, -1e23, 1e308, 5e-324, 1.0, 10**4299], kwargs={"text": '1e+23 "1e+23" \\'})
@example(args=["\0"], kwargs={})
@example(args=[], kwargs={"\ud800": 1})
def test_f16_what_is_accepted_comes_back_equal_and_what_postgresql_refuses_is_refused_before(args, kwargs):
    try:
        call = arguments.encode_call(args, kwargs)
    except InvalidArguments:
        with pytest.raises((DataError, UnicodeEncodeError, ValueError)):
            stored(json.dumps([args, kwargs], allow_nan=False, ensure_ascii=False))
        return
    returned = json.loads(stored(call.json))
    assert returned == [args, kwargs]
    assert sorted_text(returned) == sorted_text([args, kwargs])


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ((1, 2), [1, 2]),
        (range(3), [0, 1, 2]),
        (UserList([1]), [1]),
        (UserDict(a=1), {"a": 1}),
        (b"text", "text"),
        (Color.RED, "red"),
        (Level.HIGH, 3),
    ],
)
def test_what_json_can_hold_becomes_plain(given, plain):
    call = arguments.encode_call([given], {"given": given})
    assert call.args == [plain]
    assert call.kwargs == {"given": plain}
    assert type(call.args[0]) is type(plain)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ([object()], {}, r"args\[0\]: Unsupported type: <class 'object'>, pass plain JSON values\."),
        ([], {"a": [1, 2, 3, {4}]}, r"kwargs\['a'\]\[3\]: Unsupported type: <class 'set'>, pass a sorted list\."),
        ([{"b": uuid.uuid4()}], {}, r"args\[0\]\['b'\]: Unsupported type: <class 'uuid.UUID'>, pass str\(value\)\."),
        ([Decimal(1)], {}, r"args\[0\]: Unsupported type: <class 'decimal.Decimal'>, pass str"),
        ([datetime.now(UTC)], {}, r"args\[0\]: Unsupported type: <class 'datetime.datetime'>, pass value\.isoformat"),
        ([date(2026, 1, 2)], {}, r"args\[0\]: Unsupported type: <class 'datetime.date'>, pass value\.isoformat"),
        ([timedelta(1)], {}, r"args\[0\]: Unsupported type: <class 'datetime.timedelta'>, pass value\.total_seconds"),
        ([b"\xff"], {}, r"args\[0\]: Unsupported type: <class 'bytes'>, pass text"),
        (
            [gettext_lazy("Ready")],
            {},
            r"args\[0\]: Unsupported type: .*__proxy__'>, pass str\(value\)",
        ),
        ([Task()], {}, r"args\[0\]: Unsupported type: <class 'tasks.models.task.Task'>, pass its primary key"),
        (
            [Task.objects.all()],
            {},
            r"args\[0\]: Unsupported type: <class 'tasks.models.task.TaskQuerySet'>, pass a list of primary keys",
        ),
        ([math.nan], {}, r"args\[0\]: nan is not a number in JSON: pass None or text"),
        ([[-math.inf]], {}, r"args\[0\]\[0\]: -inf is not a number in JSON"),
        (["a\0b"], {}, r"args\[0\]: Text holds a NUL character, which PostgreSQL cannot store: remove it"),
        ([{"a\0": 1}], {}, r"args\[0\]\['a\\x00'\]: Text holds a NUL character"),
        (["\udce9"], {}, r"args\[0\]: Text holds half of a surrogate pair"),
        ([{1: 2}], {}, r"args\[0\]\[1\]: Keys must be text, not int: use str\(key\)"),
        ([{None: 2}], {}, r"args\[0\]\[NoneType\]: Keys must be text"),
        ([10**4300], {}, r"args\[0\]: An integer of more than 4300 digits: pass it as text"),
        ([nested(100)], {}, r"args(\[0\]){100}: More than 100 levels"),
    ],
)
def test_the_refusal_names_the_place_the_reason_and_the_way_out(args, kwargs, message):
    with pytest.raises(InvalidArguments, match=f"^{message}"):
        arguments.encode_call(args, kwargs)


def test_a_hundred_levels_are_accepted():
    assert arguments.encode_call([nested(99)], {}).args == [nested(99)]


def test_a_container_inside_itself_is_refused():
    endless: list = []
    endless.append(endless)
    with pytest.raises(InvalidArguments, match="a container inside itself"):
        arguments.encode_call([endless], {})


def test_shared_parts_that_multiply_are_refused_before_they_are_written_out():
    value: list = ["x"]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(InvalidArguments, match="At most 1000000 bytes"):
        arguments.encode_call([value], {})


@pytest.mark.parametrize("text", ["x", "é"])
def test_the_limit_counts_the_bytes_of_the_json(settings, text):
    settings.ROWLOCK = {"MAX_ARGUMENT_BYTES": 1000}
    fits = (1000 - len('[[""],{}]')) // len(text.encode())
    arguments.encode_call([text * fits], {})
    with pytest.raises(InvalidArguments, match="At most 1000 bytes of JSON are stored"):
        arguments.encode_call([text * (fits + 1)], {})


def test_both_kinds_of_arguments_count_towards_the_limit(settings):
    settings.ROWLOCK = {"MAX_ARGUMENT_BYTES": 1000}
    with pytest.raises(InvalidArguments):
        arguments.encode_call(["x" * 600], {"more": "x" * 600})


def test_a_secret_does_not_appear_in_the_refusal():
    with pytest.raises(InvalidArguments) as refusal:
        arguments.encode_call(["hunter2\0"], {})
    assert "hunter2" not in str(refusal.value)


@pytest.mark.django_db
def test_nothing_is_enqueued_and_the_transaction_goes_on():
    with pytest.raises(InvalidArguments):
        handlers.echo.enqueue("\0")
    assert not Task.objects.exists()


def test_a_return_value_is_checked_like_an_argument():
    assert arguments.encode_return_value(None) == "null"
    assert json.loads(arguments.encode_return_value({"a": (1, 2.5, "ü")})) == {"a": [1, 2.5, "ü"]}
    with pytest.raises(InvalidArguments, match=r"^return_value\['a'\]: nan"):
        arguments.encode_return_value({"a": math.nan})


def test_an_unsupported_return_value_is_a_plain_type_error_as_in_the_framework():
    with pytest.raises(TypeError, match=r"^return_value\[0\]: Unsupported type: <class 'object'>") as failure:
        arguments.encode_return_value([object()])
    assert type(failure.value) is TypeError


def test_a_return_value_beyond_the_limit_is_refused(settings):
    settings.ROWLOCK = {"MAX_ARGUMENT_BYTES": 100}
    with pytest.raises(InvalidArguments, match=r"^return_value: 161 bytes of JSON\. At most 100"):
        arguments.encode_return_value(["x"] * 40)
