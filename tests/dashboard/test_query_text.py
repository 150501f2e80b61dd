"""The text of statements: what it says of secrets is not shown."""

import pytest

from dashboard.locks import activity
from dashboard.locks.query_text import redact_query
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
]


@pytest.mark.parametrize("query", LEAKS)
def test_no_literal_of_a_statement_about_a_secret_is_shown(query: str) -> None:
    shown = redact_query(query)
    assert SECRET not in shown
    assert "[redacted]" in shown


def test_numbers_go_too_but_names_and_parameters_stay() -> None:
    shown = redact_query("UPDATE t1 SET token = 4711, a = $1 WHERE id2 = 12.5")
    assert shown == "UPDATE t1 SET token = '[redacted]', a = $1 WHERE id2 = '[redacted]'"


def test_a_statement_about_no_secret_is_shown_as_it_is() -> None:
    query = "SELECT * FROM orders_order WHERE customer_email = 'a@example.test' AND id = 7"
    assert redact_query(query) == query


def test_the_names_are_those_of_the_setting(settings) -> None:
    settings.ROWLOCK = {"REDACT": ["pin"]}
    assert redact_query("UPDATE cards SET PIN = '1234'") == "UPDATE cards SET PIN = '[redacted]'"
    assert SECRET in redact_query(LEAKS[0])


@pytest.mark.django_db(transaction=True)
def test_pages_and_commands_get_it_redacted() -> None:
    with Scene() as scene:
        scene.holding("psql", f"SELECT '{SECRET}' AS password")
        assert SECRET not in activity.look().by_pid[scene.pid("psql")].query
