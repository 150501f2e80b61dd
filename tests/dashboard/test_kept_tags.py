"""Django's `translate`, `blocktranslate` and `url` in our templates: what they say, but each looked for once."""

import re
from dataclasses import fields

import pytest
from django.template import Context, Engine, TemplateSyntaxError, engines
from django.test import override_settings
from django.urls import NoReverseMatch, set_script_prefix
from django.utils import translation

from dashboard.task_pages.actions import Seen
from dashboard.templatetags.kept import KeptAddress, KeptBlock, KeptSentence, KeptTranslation
from tasks.support import addresses

OURS = engines["django"].engine
DJANGO = Engine(libraries={"i18n": "django.templatetags.i18n"})


def rendered(text: str, **context) -> str:
    return OURS.from_string("{% load i18n %}" + text).render(Context(context))


def nodes(name: str, kind: type) -> list:
    return OURS.get_template(name).nodelist.get_nodes_by_type(kind)


def test_the_templates_of_our_tables_use_them():
    for name in ("dashboard/_stale.html", "dashboard/_locks.html"):
        assert nodes(name, KeptTranslation)
        assert nodes(name, KeptSentence)
        assert nodes(name, KeptAddress)
    for name in ("dashboard/_stale.html", "dashboard/_node.html"):
        assert nodes(name, KeptBlock)


def test_a_text_is_translated_once_for_each_language(monkeypatch):
    template = OURS.from_string('{% load i18n %}{% translate "Workers" %}')
    found = {}
    for language in ("en", "ru", "en"):
        with translation.override(language):
            found[language] = template.render(Context())
            assert found[language] == translation.gettext("Workers")
    assert found["en"] != found["ru"]
    monkeypatch.setattr("django.templatetags.i18n.TranslateNode.render", lambda *_args: pytest.fail("asked again"))
    with translation.override("ru"):
        assert template.render(Context()) == found["ru"]


def test_a_text_that_the_template_does_not_hold_is_translated_each_time():
    template = OURS.from_string('{% load i18n %}{% translate text %}{% translate "Workers" as word %}{{ word }}')
    assert [template.render(Context({"text": text})) for text in ("a", "<b>")] == ["aWorkers", "&lt;b&gt;Workers"]


def test_percent_signs_and_quotes_stand_as_they_are():
    assert rendered("""{% translate "100% of 'it' & more" %}""") == "100% of 'it' & more"


SENTENCES = (
    "{% blocktranslate with id=number %}task {{ id }}{% endblocktranslate %}",
    "{% blocktranslate count number=number %}{{ number }} session waits{% plural %}{{ number }} sessions wait"
    "{% endblocktranslate %}",
    "{% blocktranslate count number=number with name=text %}{{ number }} {{ name }}{% plural %}{{ name }}: {{ number }}"
    "{% endblocktranslate %}",
    "{% blocktranslate trimmed %}\n  50% of\n  {{ text }} {% endblocktranslate %}",
    "{% blocktranslate asvar said %}{{ text }}{% endblocktranslate %}<{{ said }}>",
)


@pytest.mark.parametrize("language", ["en", "ru"])
@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_is_the_one_that_django_says(sentence, language):
    ours, plain = (engine.from_string("{% load i18n %}" + sentence) for engine in (OURS, DJANGO))
    with translation.override(language):
        for number in (1, 2, 5, 1):
            context = {"number": number, "text": "<b>"}
            assert ours.render(Context(context)) == plain.render(Context(context))


def test_an_address_is_looked_for_once():
    template = OURS.from_string('{% url "admin:tasks_task_change" id %}')
    addresses._found.cache_clear()
    found = [template.render(Context({"id": number})) for number in (7, 8, 7)]
    assert found == ["/admin/tasks/task/7/", "/admin/tasks/task/8/", "/admin/tasks/task/7/"]
    assert addresses._found.cache_info().misses == 2


def test_an_address_below_another_prefix_or_of_another_site_is_another():
    template = OURS.from_string('{% url "admin:index" %}')
    assert template.render(Context()) == "/admin/"
    set_script_prefix("/ops/")
    try:
        assert template.render(Context()) == "/ops/admin/"
    finally:
        set_script_prefix("/")
    with override_settings(ROOT_URLCONF="tests.dashboard.test_kept_tags"), pytest.raises(NoReverseMatch):
        template.render(Context())


def test_an_address_that_is_not_there_is_told_or_left_empty():
    with pytest.raises(NoReverseMatch):
        rendered('{% url "admin:nowhere" %}')
    assert rendered('{% url "admin:nowhere" as page %}<{{ page }}>') == "<>"


urlpatterns: list = []


# What `Row.shown` holds of a row, by the name under which a template writes it.
OF_THE_TASK = {f"row.task.{field.name}" for field in fields(Seen)} | {"row.task.pk", "row.task.task_path", "row.seen"}
# `Session.shown`, and what follows from it.
OF_THE_SESSION = {
    *("session.shown", "session.key", "session.shortly", "session.pid", "session.identity.kind", "session.role"),
    *("session.client", "session.backend_start.isoformat", "session.state", "session.query", "session.blocked_by"),
    *("session.may_be_signalled", "session.is_outsider", "session.is_ours", "session.is_hidden", "session.identity"),
    "session.identity.party",
}
OF_THE_SLOT = {
    *("slot.completed", "slot.failed", "slot.at", "slot.wait_median", "slot.wait_slow", "slot.run_median"),
    "slot.run_slow",
}
# What else may be written where a block is kept by a value.
FOLLOWS = {
    "row.shown": {*OF_THE_TASK, "row.finding", "row.finding.verdict", "row.recovery", "row.asks"},
    "session.shown": OF_THE_SESSION,
    "session.identity": {"session.identity.party"},
    "slot.shown": OF_THE_SLOT,
    "level": {"line.indent"},
    "node.blocked|length": {"node.blocked"},
    "work.rows": {"row.url"},
}
KEEPING = tuple(f"dashboard/_{name}.html" for name in ("stale", "node", "locks", "charts", "work"))


@pytest.mark.parametrize("name", KEEPING)
def test_a_row_that_is_kept_writes_nothing_that_may_change_behind_its_back(name):
    source = source_of(name).replace('{% include "dashboard/_who.html" %}', source_of("dashboard/_who.html"))
    source = re.sub(r"{% fresh %}.*?{% endfresh %}", "", source, flags=re.DOTALL)
    blocks = re.findall(r"{% keep (.*?) %}(.*?){% endkeep %}", source, re.DOTALL)
    assert blocks
    for values, text in blocks:
        assert not re.search("{% include (?!.admin)", text), "what is taken in is to be looked at too"
        names = re.findall(r"\b(?:row|session|node|line|work|slot)\.[a-z_.]+", text)
        written = {name.removesuffix(".value").removesuffix(".label") for name in names}
        assert written <= {*values.split(), *(name for value in values.split() for name in FOLLOWS.get(value, ()))}


def source_of(name: str) -> str:
    return OURS.get_template(name).source


def kept(text: str):
    """A template whose block is kept by `key`."""
    return OURS.from_string("{% keep key %}" + text + "{% endkeep %}")


def test_a_block_is_written_once_for_each_value():
    template = kept("<b>{{ name }}</b>")
    assert template.render(Context({"key": (1, "a"), "name": "<a>"})) == "<b>&lt;a&gt;</b>"
    assert template.render(Context({"key": (1, "a"), "name": "unseen"})) == "<b>&lt;a&gt;</b>"
    assert template.render(Context({"key": (1, "b"), "name": "seen"})) == "<b>seen</b>"


def test_what_is_fresh_in_it_is_written_each_time():
    template = kept("<i>{{ name }}</i>{% fresh %}<b>{{ name }}</b>{% endfresh %}, {% fresh %}{{ key }}{% endfresh %}.")
    assert template.render(Context({"key": 1, "name": "<a>"})) == "<i>&lt;a&gt;</i><b>&lt;a&gt;</b>, 1."
    assert template.render(Context({"key": 1, "name": "<b>"})) == "<i>&lt;a&gt;</i><b>&lt;b&gt;</b>, 1."
    assert template.render(Context({"key": 2, "name": "<c>"})) == "<i>&lt;c&gt;</i><b>&lt;c&gt;</b>, 2."


def test_several_values_tell_it_apart_together():
    template = OURS.from_string("{% keep a b %}{{ name }}{% endkeep %}")
    for a, b in ((1, 1), (1, 2), (2, 1), (1, 1)):
        assert template.render(Context({"a": a, "b": b, "name": f"{a}{b}"})) == f"{a}{b}"
    assert template.render(Context({"a": 1, "b": 2, "name": "unseen"})) == "12"


def test_and_once_for_each_language():
    template = kept('{% load i18n %}{% translate "Workers" %}')
    with translation.override("en"):
        assert template.render(Context({"key": 1})) == "Workers"
    with translation.override("ru"):
        assert template.render(Context({"key": 1})) == translation.gettext("Workers") != "Workers"


def test_and_for_each_place_of_the_site():
    template = kept('{% url "admin:index" %}')
    try:
        here = template.render(Context({"key": 1}))
        set_script_prefix("/below/")
        assert template.render(Context({"key": 1})) == "/below" + here
    finally:
        set_script_prefix("/")


def test_no_more_blocks_are_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr("dashboard.templatetags.kept.MOST_BLOCKS", 3)
    template = kept("{{ key }}")
    [block] = template.nodelist.get_nodes_by_type(KeptBlock)
    for number in range(10):
        assert template.render(Context({"key": number})) == str(number)
        assert len(block.kept) <= 3


@pytest.mark.parametrize(
    "text",
    ["{% keep %}{% endkeep %}", "{% keep a %}", "{% keep a %}{% fresh %}{% endkeep %}",
     "{% keep a %}{% if a %}{% fresh %}{{ b }}{% endfresh %}{% endif %}{% endkeep %}"],
)  # fmt: skip
def test_a_block_without_a_value_or_an_end_or_with_a_hidden_fresh_part_is_a_mistake(text):
    with pytest.raises(TemplateSyntaxError):
        OURS.from_string(text)
