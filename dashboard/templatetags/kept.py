"""Django's `translate`, `blocktranslate` and `url`, which keep what they found: our tables repeat them in every row.

A text of the template was translated anew for each cell (11 microseconds, 300 of them in a list of tasks). Settings put
this library in the place of Django's `i18n`, so that templates are written, and their texts extracted, as ever.

And `keep`, for the rows themselves: a list that is looked at again shows mostly what it showed before, but for what is
`fresh` in it.
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

from tasks.addresses import address

MOST_BLOCKS = 2000  # of one place in a template, some kilobytes each

register = Library()
register.tags.update(i18n.register.tags)
register.filters.update(i18n.register.filters)


class KeptTranslation(i18n.TranslateNode):
    """A text that stands in the template itself: one translation for each language."""

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
    """As Django's."""
    node = i18n.do_translate(parser, token)
    text = node.filter_expression
    is_constant = text.var.lookups is None and not text.filters and not node.message_context
    return KeptTranslation(node) if is_constant and not node.asvar else node


class KeptSentence(i18n.BlockTranslateNode):
    """A sentence of the template: what is asked of the catalogue, and what stands in its places, is found out once."""

    def __init__(self, plain: i18n.BlockTranslateNode) -> None:
        super().__init__(**vars(plain))
        message, names = super().render_token_list(self.singular)
        plural, others = super().render_token_list(self.plural or [])
        self.singular_parts = message, names
        # A number that both forms name is written once.
        self.plural_parts = plural, [name for name in others if name not in names]

    def render_token_list(self, tokens: list[Token]) -> tuple[str, list[str]]:
        message, names = self.singular_parts if tokens is self.singular else self.plural_parts
        return message, [*names]  # the caller adds to it


@register.tag("blocktranslate")
@register.tag("blocktrans")
def blocktranslate(parser: Parser, token: Token) -> i18n.BlockTranslateNode:
    """As Django's."""
    return KeptSentence(i18n.do_block_translate(parser, token))


class KeptAddress(URLNode):
    """The address of a page, by its name and its arguments."""

    def render(self, context: Context) -> SafeString:
        name, args = self.view_name.resolve(context), [arg.resolve(context) for arg in self.args]
        return conditional_escape(address(name, *args))


@register.tag
def url(parser: Parser, token: Token) -> URLNode:
    """As Django's, of the one admin site that there is."""
    node = parsed_url(parser, token)
    return node if node.kwargs or node.asvar else KeptAddress(node.view_name, node.args, node.kwargs, node.asvar)


class Fresh(Node):
    """What is written anew each time in the midst of what is kept."""

    def __init__(self, nodelist: NodeList) -> None:
        self.nodelist = nodelist

    def render(self, context: Context) -> SafeString:
        return self.nodelist.render(context)


class KeptBlock(Node):
    """What is written of some values, once for each language, but for what is to be fresh in it."""

    def __init__(self, values: Sequence[FilterExpression], nodelist: NodeList) -> None:
        self.values = values
        self.nodelist = nodelist
        self.fresh = [node for node in nodelist if isinstance(node, Fresh)]
        self.kept: dict[Hashable, list[SafeString]] = {}  # the texts before, between and after the fresh ones

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
    """`{% keep value … %}…{% endkeep %}`: all in between follows from the values, which are hashable.

    But for `{% fresh %}…{% endfresh %}` in it, which stands in no other tag of the block.
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
    """Of a `keep` around it: what changes with each look, like an age."""
    nodelist = parser.parse(("endfresh",))
    parser.delete_first_token()
    return Fresh(nodelist)
