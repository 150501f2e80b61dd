"""The alert rules and the runbook: they name numbers, pages and commands that there are, and each other."""

import re
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.test import Client
from django.urls import resolve
from prometheus_client.parser import text_string_to_metric_families

from tests.tasks import rows

DOCS = Path(__file__).resolve().parents[3] / "docs"
RULES = [rule for group in yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
RUNBOOK = (DOCS / "runbook.md").read_text()
ENTRIES = dict(re.findall(r"^## (Rowlock\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
NAMES = [rule["alert"] for rule in RULES]
PROMETHEUS_OWN = {"up"}
PARTS = ("Means", "Look", "Do", "Do not")


@pytest.fixture
def scraped(db, settings):
    """Names of series, and the values of each label of each, of a system with one task in it."""
    settings.SHARED_LOOK_SECONDS, settings.METRICS_TOKEN = 0, "token"
    rows.ready()
    text = Client().get("/metrics", headers={"Authorization": "Bearer token"}).text
    known: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        known |= {family.name + suffix: {} for suffix in suffixes}
        for sample in family.samples:
            for label, value in sample.labels.items():
                known.setdefault(sample.name, {}).setdefault(label, set()).add(value)
    return known


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_number_that_a_rule_asks_for_is_in_a_scrape(rule, scraped):
    for name, matchers in re.findall(r"\b(rowlock_\w+|up)\b(?:\{([^}]*)\})?", rule["expr"]):
        assert name in scraped.keys() | PROMETHEUS_OWN
        for label, value in re.findall(r'(\w+)="([^"]*)"', matchers if name not in PROMETHEUS_OWN else ""):
            values = scraped[name].get(label, set())
            assert not values or value in values, f"{name} never has {label}={value}"


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_rule_says_how_urgent_it_is_and_where_to_read_on(rule):
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    for bracket in ("()", "{}", "[]"):
        assert rule["expr"].count(bracket[0]) == rule["expr"].count(bracket[1])


def test_rules_and_entries_are_the_same():
    assert sorted(NAMES) == sorted(set(NAMES)) == sorted(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_what_it_means_what_to_do_and_what_not(name):
    assert tuple(re.findall(r"^- \*\*([^*]+)\*\* ", ENTRIES[name], re.MULTILINE))[:4] == PARTS


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`(/[a-z/]+)(?:\?[^`]*)?`", RUNBOOK)) - {"/healthz", "/readyz"})
)
def test_every_page_that_it_names_is_there(path):
    assert resolve(path).url_name not in (None, "")


@pytest.mark.parametrize("line", sorted(set(re.findall(r"`python manage\.py\s+([^`]+)`", RUNBOOK))))
def test_every_command_that_it_names_is_there_and_knows_its_options(line):
    name, *words = line.split()
    parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
    known = {option for action in parser._actions for option in action.option_strings}
    assert {word for word in words if word.startswith("--")} <= known


def test_every_variable_that_it_names_is_read_somewhere():
    code = "".join(path.read_text() for app in ("dashboard", "tasks") for path in (DOCS.parent / app).rglob("*.py"))
    for variable in set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", RUNBOOK)):
        assert f'"{variable}"' in code, variable


def test_every_number_has_its_line_in_the_document(scraped):
    """Families as they are called there: a counter with its `_total`, a histogram without its parts."""
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in scraped}
    documented = re.findall(r"^\| `(rowlock_\w+)` ", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(families)
