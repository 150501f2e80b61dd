"""The text of statements: what it says of secrets is not shown."""

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboard.locks import activity
from tasks.support.redacted_sql import redact_query
from tests.dashboard.scenes import Scene

SECRET = "hunter2"
LEAKS = [
    f"ALTER ROLE anna PASSWORD '{SECRET}'",
    f"ALTER ROLE anna PASSWORD E'x\\'{SECRET}'",
    f"UPDATE users SET password='{SECRET}' WHERE name = 'anna'",
    f"INSERT INTO users (name, password) VALUES ('anna', '{SECRET}')",
    f"SELECT '{SECRET}' AS api_key",
    f"SELECT dblink('host=db password={SECRET}')",
    f'SELECT $body$ {{"token": "{SECRET}"}} $body$',
    f"SELECT $$ {SECRET} $$, secret FROM vault",
    f"SET my.Authorization = 'Bearer it''s {SECRET}'",
    f"UPDATE users SET token = '{SECRET}",
    # The key of a session is a login; Django writes it into the statement unless it binds on the server.
    f'SELECT "session_data" FROM "django_session" WHERE "django_session"."session_key" = \'{SECRET}\' LIMIT 21',
    f"SELECT session_data FROM cached_sessions WHERE sessionKey = '{SECRET}'",
    f"UPDATE axes_accessattempt SET failures_since_start = 2 WHERE username = '{SECRET}'",
    # Something with an odd apostrophe before the literal.
    f"/* don't */ SELECT password FROM users WHERE password = '{SECRET}'",
    f"SELECT password AS \"it's\" FROM users WHERE password = '{SECRET}'",
    f"SELECT password -- it's\nFROM users WHERE password = '{SECRET}'",
    f"/* a /* don't */ b */ SELECT '{SECRET}' AS token",
    f"/* don't /* SELECT '{SECRET}' AS token",
    f"SELECT U&\"it's\" FROM users WHERE password = '{SECRET}'",
    f"SELECT $it$ it's $$ $it$, '{SECRET}' AS token",
    f"SELECT a$it$'{SECRET}$it$' AS token",
    f"SELECT 1 AS a$$, '{SECRET}' AS token, 2 AS b$$",
    f"SELECT E'it\\'s', '{SECRET}' AS token",
    # Where the literal ends, the session's standard_conforming_strings decides.
    f"SELECT 'a\\', '{SECRET}' AS token, ''",
    f"SELECT E'a'\n'it\\'s', '{SECRET}' AS token",
    # In comments, in bare words, under a coded name, in an address.
    f"/* password {SECRET} */ SELECT 1",
    f"SELECT 1 -- token {SECRET}",
    f"BEGIN; SET app.token TO {SECRET}",
    f"ALTER ROLE anna SET app.token = {SECRET}, more",
    f"UPDATE users SET U&\"p\\0061ssword\" = '{SECRET}'",
    f"UPDATE users SET p\u0430ssword = '{SECRET}'",
    f"SELECT dblink('postgres://anna:{SECRET}@db.example.com/shop')",
]


@pytest.mark.parametrize("query", LEAKS)
def test_no_literal_of_a_statement_about_a_secret_is_shown(query: str) -> None:
    shown = redact_query(query)
    assert SECRET not in shown
    assert "[redacted]" in shown


def test_numbers_go_too_but_names_and_parameters_stay() -> None:
    shown = redact_query("UPDATE t1 SET token = 4711, a = $1 WHERE id2 = 12.5")
    assert shown == "UPDATE t1 SET token = '[redacted]', a = $1 WHERE id2 = '[redacted]'"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM orders_order WHERE customer_email = 'a@example.test' AND id = 7",
        "/* don't */ SELECT 'it''s' AS \"it's\" -- it's",
        "UPDATE t SET a = b, c = $1 WHERE d = U&'\\0061' AND e = 'C:\\' AND f = 1.5e-3",
        "SELECT $a$ it's $a$, E'\\'', B'101' /* /* */ */",
        "SET statement_timeout TO off",
    ],
)
def test_a_statement_about_no_secret_is_shown_as_it_is(query) -> None:
    assert redact_query(query) == query


def test_names_of_a_statement_about_a_secret_stay() -> None:
    query = 'UPDATE "users" SET a = b, tokens = tokens - $1, "it\'s" = NULL WHERE x2 IN (SELECT y FROM z) AND k <> m'
    assert redact_query(query) == query
    shown = redact_query("ALTER TABLE tokens SET (fillfactor = 70), ADD b text; UPDATE t SET a = b")
    words = "'[redacted]' " * 3
    assert shown == f"ALTER TABLE tokens SET (fillfactor = '[redacted]'), {words.strip()}; UPDATE t SET a = b"


def test_a_statement_that_is_cut_off_may_name_a_secret_behind_the_end() -> None:
    assert redact_query(f"INSERT INTO users VALUES ('{SECRET}', 'an", is_cut=True).endswith(
        "VALUES ('[redacted]', '[redacted]'"
    )


# Each piece stands between commas or blanks of a SELECT list: as it is written, and as it is shown.
LETTERS = "ab1 $'\"\\/*-;,.E\nÄ"
MARK = "\N{SNOWMAN}"  # in every literal, in no other piece
texts = st.text(LETTERS, max_size=6)


def between(text: str, *ends: str) -> bool:
    return not any(end in text for end in ends)


def doubled(text: str, quote: str) -> str:
    return text.replace(quote, quote * 2)


escaped = texts.map(lambda text: text.replace("\\", "\\\\").replace("'", "\\'"))
literals = st.one_of(
    texts.filter(lambda text: between(text, "\\")).map(lambda text: f"'{doubled(text, chr(39))}{MARK}'"),
    escaped.map(lambda text: f"E'{text}{MARK}'"),
    escaped.map(lambda text: f"e'{MARK}{text}'"),
    texts.filter(lambda text: between(text, "\\")).map(lambda text: f"U&'{MARK}{doubled(text, chr(39))}'"),
    st.tuples(st.sampled_from(["", "t", "_ä1"]), texts)
    .filter(lambda pair: f"${pair[0]}$" not in f"{MARK}{pair[1]}$")
    .map(lambda pair: f"${pair[0]}${MARK}{pair[1]}${pair[0]}$"),
).map(lambda literal: (literal, "'[redacted]'"))
names = st.one_of(
    st.sampled_from(["NULL", "CURRENT_DATE", "pi()", "CAST(NULL AS text)"]),
    texts.filter(lambda text: between(text, "\\")).map(lambda text: f'NULL AS "x{doubled(text, chr(34))}"'),
    texts.filter(lambda text: between(text, "\\")).map(lambda text: f'NULL AS U&"x{doubled(text, chr(34))}"'),
    st.sampled_from(["NULL AS a$$", "NULL AS e$t$", "NULL AS ä$_ä1$"]),
).map(lambda name: (name, name))
comments = st.one_of(
    st.just((" ", " ")),
    texts.filter(lambda text: between(text, "\n")).map(lambda text: (f"--{text}{MARK}\n", "-- [redacted]\n")),
    texts.filter(lambda text: between(f"*{text}*", "/*", "*/")).map(
        lambda text: (f"/*{text} /* {MARK}*/ {text}*/", "/* [redacted] */")
    ),
)
columns = st.lists(st.tuples(comments, st.one_of(literals, names), comments), min_size=1, max_size=6)


def joined(parts, which: int) -> str:
    listed = ",".join("".join(piece[which] for piece in column) for column in parts)
    return f"SELECT NULL AS password, {listed}"


@pytest.mark.django_db
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(parts=columns, data=st.data())
def test_no_literal_survives_whatever_stands_around_it_and_wherever_it_is_cut(parts, data) -> None:
    """The server runs each statement, so the pieces are what they are said to be."""
    query = joined(parts, 0)
    with connection.cursor() as cursor:
        cursor.execute(query)
        values = [value for value in cursor.fetchone() if isinstance(value, str)]
    assert len(values) == sum(MARK in column[1][0] for column in parts)
    assert redact_query(query) == joined(parts, 1)
    length = data.draw(st.integers(0, len(query)))
    assert MARK not in redact_query(query[:length], is_cut=True)


@pytest.mark.django_db
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts=st.lists(st.text("a'\\ ,", max_size=8), min_size=1, max_size=4))
def test_no_literal_survives_without_standard_conforming_strings(texts) -> None:
    """As an old client may have it: a backslash escapes in every literal."""
    literals = [text.replace("\\", "\\\\").replace("'", "\\'") + MARK for text in texts]
    query = "SELECT NULL AS password, " + ", ".join(f"'{literal}'" for literal in literals)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL standard_conforming_strings = off; SET LOCAL escape_string_warning = off")
        cursor.execute(query)
        assert cursor.fetchone()[1:] == tuple(text + MARK for text in texts)
    assert MARK not in redact_query(query)


BITS = [*"ab1$'\"\\/*-;=.E\n&U ", "password", "set", "to", "--", "/*", "*/", "$a$"]


@given(query=st.lists(st.sampled_from(BITS), max_size=40).map("".join))
@settings(deadline=None)
def test_any_text_is_read_to_its_end(query) -> None:
    shown = redact_query(query, is_cut=True)
    assert bool(shown) == bool(query)


def test_the_names_are_those_of_the_setting(settings) -> None:
    settings.ROWLOCK = {"REDACT": ["pin"]}
    assert redact_query("UPDATE cards SET PIN = '1234'") == "UPDATE cards SET PIN = '[redacted]'"
    assert SECRET in redact_query(LEAKS[0])


@pytest.mark.django_db(transaction=True)
def test_pages_and_commands_get_it_redacted() -> None:
    with Scene() as scene:
        scene.holding("psql", f"SELECT '{SECRET}' AS password")
        assert SECRET not in activity.read().by_pid[scene.pid("psql")].query


@pytest.mark.django_db(transaction=True)
def test_a_statement_that_the_server_or_we_cut_off_is_known_as_such() -> None:
    names = "password".rjust(1100)
    with Scene() as scene:
        scene.holding("ours", f"SELECT '{SECRET}' AS {names}")
        scene.opened("theirs", options="-c statement_timeout=60s")
        scene.holding("theirs", f"SELECT '{SECRET}', '{'ä' * 600}' AS password")
        seen = activity.read().by_pid
        assert SECRET not in seen[scene.pid("ours")].query
        assert SECRET not in seen[scene.pid("theirs")].query
        assert seen[scene.pid("theirs")].query == "SELECT '[redacted]', '[redacted]'"
