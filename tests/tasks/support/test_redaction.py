"""Secrets stay out of what is shown and kept, and every error text can be stored (fault F16)."""

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.framework import redacted_calls
from tasks.support import reading, redaction
from tasks.support.redaction import REDACTED
from tests.tasks import handlers


class Error(Exception):
    class Inner(Exception):
        pass


class Hostile(Exception):
    def __str__(self) -> str:
        raise ValueError("no text for you")


def raised(error: BaseException) -> BaseException:
    """The error with a traceback, as a worker gets it."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001  SystemExit is one of them
        return caught


def described(error: BaseException, *args: object, **kwargs: object) -> tuple[str, str]:
    return redacted_calls.describe_exception(raised(error), handlers.log_in, list(args), kwargs)


def test_values_under_secret_names_are_replaced_however_deep():
    value = {
        "user": "anna",
        "Password": "x",
        "db_password_old": {"any": "thing"},
        "list": [{"API_KEY": 1, "other": [2]}],
    }
    assert redaction.redact(value) == {
        "user": "anna",
        "Password": REDACTED,
        "db_password_old": REDACTED,
        "list": [{"API_KEY": REDACTED, "other": [2]}],
    }
    assert value["Password"] == "x"


def test_the_names_come_from_the_setting(settings):
    settings.ROWLOCK = {"REDACT": ["IBAN"]}
    assert redaction.redact({"iban": 1, "password": 2}) == {"iban": REDACTED, "password": 2}


def test_positional_secrets_are_known_by_the_signature():
    path = handlers.log_in.module_path
    assert redacted_calls.redact_call(path, ["anna", "hunter2", "t1", "t2"], {"note": {"token": 1}}) == (
        ["anna", REDACTED, REDACTED, REDACTED],
        {"note": {"token": REDACTED}},
    )


def test_the_context_takes_no_part_in_the_positions():
    path = handlers.log_in_with_context.module_path
    assert redacted_calls.redact_call(path, ["hunter2", "more"], {}) == ([REDACTED, "more"], {})


def test_arguments_of_an_unknown_function_are_all_shown_without_what_is_secret_by_its_key():
    assert redacted_calls.redact_call("not.known", [1, {"token": "x"}], {"password": "x"}) == (
        [1, {"token": REDACTED}],
        {"password": REDACTED},
    )


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("anna", "hunter2"), {}),
        (("anna",), {"password": "hunter2"}),
        (("anna", {"any": ["hunter2"]}), {}),
        (("anna", "x", "hunter2"), {}),
        (("anna",), {"password": "x", "note": {"deep": [{"api_key": "hunter2"}]}}),
    ],
)
def test_secret_arguments_are_taken_out_of_the_traceback(args, kwargs):
    _, text = described(ValueError("no user anna with hunter2"), *args, **kwargs)
    assert "hunter2" not in text
    assert f"no user anna with {REDACTED}" in text


@pytest.mark.parametrize("secret", ["it's\n\\ tricky", "pässword", 'say "when"', "hunter2 and hunter2"])
def test_quoted_secrets_are_found_too(secret):
    error = KeyError(secret)
    error.add_note(f"{secret} as text, {secret!a} in ASCII")
    _, text = described(error, "anna", secret)
    assert secret not in text
    assert repr(secret)[1:-1] not in text
    assert ascii(secret)[1:-1] not in text


def test_secret_numbers_count_and_short_values_are_left():
    _, text = described(ValueError("pin 123456, cvv abc"), "anna", [123456, "abc", True, None])
    assert f"pin {REDACTED}, cvv abc" in text


def test_a_secret_that_holds_another_goes_as_a_whole():
    assert redaction.redact_text("is hunter2hunter2x", ["hunter2", "hunter2hunter2x"]) == f"is {REDACTED}"


def test_the_class_is_given_by_its_path():
    assert described(Error())[0] == "tests.tasks.support.test_redaction.Error"
    assert described(Error.Inner())[0] == "tests.tasks.support.test_redaction.Error.Inner"
    assert described(SystemExit(3))[0] == "builtins.SystemExit"


def test_a_class_made_inside_a_function_is_given_by_its_nearest_importable_base():
    class Local(Error):
        pass

    path, text = described(Local("here"))
    assert path == "tests.tasks.support.test_redaction.Error"
    assert "Local: here" in text


def test_an_exception_that_cannot_be_written_is_still_described():
    path, text = described(Hostile())
    assert path == "tests.tasks.support.test_redaction.Hostile"
    assert "Hostile" in text


def test_a_failure_without_end_is_cut_in_the_middle():
    _, text = described(ValueError("start " + "x" * 1_000_000 + " end"))
    assert len(text) < reading.LONGEST_TEXT + 100
    assert text.startswith("Traceback")
    assert text.endswith(" end\n")
    assert "characters left out" in text


def test_f16_nul_and_surrogates_are_shown():
    assert reading.storable("a\0b\udce9") == "a\\x00b\\udce9"


@pytest.mark.django_db
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(st.characters(), max_size=300))
def test_f16_postgresql_keeps_every_storable_text(text):
    text = reading.storable(text, longest=100)
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::text", [text])
        assert cursor.fetchone() == (text,)


SECRET = "hunter2-4711"
# Each is shown with the secret replaced and all else as it is.
SHOWN = [
    # Names are compared without case, separators, accents and what letters are.
    {"apiKey": SECRET},
    {"X-API-Key": SECRET},
    {"API KEY": SECRET},
    {"db.pwd": SECRET},
    {"private_key": SECRET},
    {"accessKey": SECRET},
    {"passphrase": SECRET},
    {"PASSWÖRD": SECRET},
    {"P\N{FULLWIDTH LATIN CAPITAL LETTER A}SSWORD": SECRET},
    {"p\N{CYRILLIC SMALL LETTER A}ssword": SECRET},
    {"TOKE\N{GREEK CAPITAL LETTER NU}": SECRET},
    {"pass\N{ZERO WIDTH SPACE}word": SECRET},
    # A name and its value beside each other.
    {"name": "Authorization", "value": SECRET},
    {"key": "X-Api-Key", "enabled": True, "content": SECRET},
    {"headers": [["Authorization", SECRET], ["Accept", "text/html"]]},
    # In texts, as JSON and otherwise.
    '{"user": "anna", "password": "hunter2-4711"}',
    '{"headers": [{"name": "Authorization", "value": "hunter2-4711"}]}',
    'The answer was {"user": {"passphrase": "hunter2-4711"}}, status 403',
    '{"body": "{\\"password\\": \\"hunter2-4711\\"}"}',
    'cut off: {"body": "{\\"password\\": \\"hunter2-4711\\", \\"user',
    "{'user': 'anna', 'password': 'hunter2-4711', 'id': 3}",
    "password=hunter2-4711",
    "db_password = 'hunter2-4711', user = 'anna'",
    "pwd=b'hunter2-4711'",
    "https://example.com/?api_key=hunter2-4711",
    "database.password: hunter2-4711",
    "X-Api-Key: hunter2-4711\nAccept: text/html",
    "call with Bearer hunter2-4711",
    "no route to postgres://anna:hunter2-4711@db.example.com:5432/shop",
    # Command lines.
    ["mysql", "-phunter2-4711", "shop"],
    ["curl", "--user", "me:hunter2-4711", "https://example.com"],
    ["curl", "--user=me:hunter2-4711"],
    ["curl", "-ume:hunter2-4711"],
    ["login", "--password", "hunter2-4711", "--verbose"],
    "Command '['mysql', '-phunter2-4711', 'shop']' returned non-zero exit status 1.",
    "mysql -u root -phunter2-4711 shop",
    "curl --user me:hunter2-4711 https://example.com",
    "login --password hunter2-4711 --verbose",
]
# Nothing of these is secret, though it looks like it.
UNTOUCHED = [
    {"name": "anna", "value": 3},
    {"names": ["password", "email"], "count": 2},
    "KeyError: 'token'",
    "oauthlib.oauth2.TokenExpiredError: the grant is too old",
    "rest_framework.exceptions.InvalidToken: it was signed by another key",
    "if password == given:",
    "The password of anna was changed.",
    "http://localhost:8000/users/anna@example.com",
    ["find", "/var/tmp", "-path", "x", "-print"],
    ["rsync", "-a", "host:/data", "/backup"],
    ["docker", "run", "-u", "1000:1000", "image"],
    "[1, 2, {}",
]


@pytest.mark.parametrize("value", SHOWN, ids=repr)
def test_a_secret_is_found_by_what_stands_around_it(value):
    shown = redaction.redact(value)
    assert repr(shown) == repr(value).replace(SECRET, REDACTED)
    assert redaction.redact(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Digest username=anna, response=4711\nHost: x", f"Authorization: {REDACTED}\nHost: x"),
        ("Cookie: language=de; sessionid=4711", f"Cookie: {REDACTED}"),
        ("postgres://anna:p@ss@db.example.com/shop", f"postgres://anna:{REDACTED}@db.example.com/shop"),
        ("-----BEGIN PRIVATE KEY-----\n4711\n4712", f"-----BEGIN PRIVATE KEY-----{REDACTED}"),
        ("tokens={'a': [4711, {'b': 4712}]}, user=3", f"tokens={REDACTED}, user=3"),
        ("tokens={'a': [4711, {'b': 47", f"tokens={REDACTED}"),
        (f'{{"password": {"[" * 20_000}4711', REDACTED),
    ],
)
def test_a_secret_of_several_words_or_lines_goes_to_its_end(text, shown):
    assert redaction.redact(text) == shown


def test_a_secret_inside_a_text_is_taken_out_of_the_traceback_too():
    _, text = described(ValueError("hunter2-4711 is wrong"), "anna", note="postgres://anna:hunter2-4711@db/shop")
    assert f"{REDACTED} is wrong" in text


def test_an_address_of_nobodys_argument_is_taken_out_of_the_traceback():
    _, text = described(ValueError("no route to postgres://anna:hunter2-4711@db/shop"))
    assert f"no route to postgres://anna:{REDACTED}@db/shop" in text


def test_names_of_another_alphabet_are_compared_by_it_too(settings):
    settings.ROWLOCK = {"REDACT": ["Пароль", "ΝΟΜΟΣ"]}
    assert redaction.redact({"пароль": 1, "νομος": 2, "папа": 3}) == {"пароль": REDACTED, "νομος": REDACTED, "папа": 3}


def test_a_name_without_a_letter_names_nothing(settings):
    settings.ROWLOCK = {"REDACT": ["-", "pin"]}
    assert redaction.redact({"a": 1, "pin": 2}) == {"a": 1, "pin": REDACTED}


@pytest.mark.parametrize("value", UNTOUCHED, ids=repr)
def test_what_is_no_secret_stays(value):
    assert redaction.redact(value) == value
