"""Caching versions of Django's `translate`, `blocktranslate` and `url`, because table rows repeat them.

Django translates a constant text anew for each cell (11 microseconds, 300 of them in a list of tasks). The settings
replace Django's `i18n` with this library, so templates and the extraction of their texts stay the same.

`keep` caches whole rows by the values that they show, except for the parts marked `fresh`.
"""

from collections.abc import Hashable, Iterator, Sequence

from django.template import Context, Library, Node, NodeList, TemplateSyntaxError
from django.template.base import FilterExpression, Parser, Token
from django.template.defaulttags import URLNode
from django.template.defaulttags import url as parsed_url
from django.templatetags import i18n
from django.urls import get_script_prefix
from django.utils.html import conditional_escape
from django.utils.safestring import SafeString
from django.utils.translation import get_language

from tasks.support.addresses import address

MOST_BLOCKS = 2000  # for each `keep` in a template; a block takes some kilobytes

register = Library()
register.tags.update(i18n.register.tags)
register.filters.update(i18n.register.filters)


class KeptTranslation(i18n.TranslateNode):
    """A constant text of a template, translated once per language."""

    def __init__(self, plain: i18n.TranslateNode) -> None:
        super().__init__(plain.filter_expression, plain.noop)
        self.kept: dict[str | None, str] = {}

    def render(self, context: Context) -> str:
        language = get_language()
        if language not in self.kept:
            self.kept[language] = super().render(context)
        return self.kept[language]


@register.tag("translate")
@register.tag("trans")
def translate(parser: Parser, token: Token) -> i18n.TranslateNode:
    """Like Django's, but cached for constant texts."""
    node = i18n.do_translate(parser, token)
    text = node.filter_expression
    is_constant = text.var.lookups is None and not text.filters and not node.message_context
    return KeptTranslation(node) if is_constant and not node.asvar else node


class KeptSentence(i18n.BlockTranslateNode):
    """A sentence of a template; its message and placeholders are worked out once."""

    def __init__(self, plain: i18n.BlockTranslateNode) -> None:
        super().__init__(**vars(plain))
        message, names = super().render_token_list(self.singular)
        plural, others = super().render_token_list(self.plural or [])
        self.singular_parts = message, names
        # A number that both forms use is rendered once.
        self.plural_parts = plural, [name for name in others if name not in names]

    def render_token_list(self, tokens: list[Token]) -> tuple[str, list[str]]:
        message, names = self.singular_parts if tokens is self.singular else self.plural_parts
        return message, [*names]  # the caller adds to it


@register.tag("blocktranslate")
@register.tag("blocktrans")
def blocktranslate(parser: Parser, token: Token) -> i18n.BlockTranslateNode:
    """Like Django's, but cached."""
    return KeptSentence(i18n.do_block_translate(parser, token))


class KeptAddress(URLNode):
    """The address of a page by its name and arguments, cached."""

    def render(self, context: Context) -> SafeString:
        name, args = self.view_name.resolve(context), [arg.resolve(context) for arg in self.args]
        return conditional_escape(address(name, *args))


@register.tag
def url(parser: Parser, token: Token) -> URLNode:
    """Like Django's, but cached; there is only one admin site."""
    node = parsed_url(parser, token)
    return node if node.kwargs or node.asvar else KeptAddress(node.view_name, node.args, node.kwargs, node.asvar)


class Fresh(Node):
    """A part of a `keep` that is rendered each time."""

    def __init__(self, nodelist: NodeList) -> None:
        self.nodelist = nodelist

    def render(self, context: Context) -> SafeString:
        return self.nodelist.render(context)


class KeptBlock(Node):
    """A block that is rendered once per language and values, except for its `fresh` parts."""

    def __init__(self, values: Sequence[FilterExpression], nodelist: NodeList) -> None:
        self.values = values
        self.nodelist = nodelist
        self.fresh = [node for node in nodelist if isinstance(node, Fresh)]
        self.kept: dict[Hashable, list[SafeString]] = {}  # the texts around the fresh parts

    def render(self, context: Context) -> SafeString:
        key = get_language(), get_script_prefix(), *[value.resolve(context) for value in self.values]
        texts = self.kept.get(key)
        if texts is None:
            texts = [between.render(context) for between in self._between()]
            if len(self.kept) >= MOST_BLOCKS:
                self.kept.clear()
            self.kept[key] = texts
        if not self.fresh:
            return texts[0]
        parts = [texts[0]]
        for node, text in zip(self.fresh, texts[1:], strict=True):
            parts += node.nodelist.render(context), text
        return SafeString("".join(parts))  # nosec B703

    def _between(self) -> Iterator[NodeList]:
        nodes = NodeList()
        for node in self.nodelist:
            if isinstance(node, Fresh):
                yield nodes
                nodes = NodeList()
            else:
                nodes.append(node)
        yield nodes


@register.tag
def keep(parser: Parser, token: Token) -> KeptBlock:
    """`{% keep value … %}…{% endkeep %}`: cache the block by these hashable values.

    `{% fresh %}…{% endfresh %}` parts are rendered each time; they must not stand inside another tag.
    """
    _name, *values = token.split_contents()
    if not values:
        raise TemplateSyntaxError("{% keep %} takes the values from which everything in it follows.")
    nodelist = parser.parse(("endkeep",))
    parser.delete_first_token()
    block = KeptBlock([parser.compile_filter(value) for value in values], nodelist)
    if len(block.fresh) < len(nodelist.get_nodes_by_type(Fresh)):
        raise TemplateSyntaxError("{% fresh %} stands in {% keep %} itself, not in a tag within it.")
    return block


@register.tag
def fresh(parser: Parser, _token: Token) -> Fresh:
    """A part of the enclosing `keep` that changes at each refresh, for example an age."""
    nodelist = parser.parse(("endfresh",))
    parser.delete_first_token()
    return Fresh(nodelist)
