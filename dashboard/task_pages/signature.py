"""Form fields made from a task's signature, and the call that their values make."""

import inspect
import json
import types as python_types
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from django import forms
from django.utils.translation import gettext as _

from tasks.admin.forms import OptionField
from tasks.commands import types
from tasks.framework.declaration import PostgresTask
from tasks.support import reading
from tasks.support.redaction import SecretFinder

KEYWORD_ONLY, POSITIONAL_ONLY = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY
POSITIONAL_OR_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD
VAR_KEYWORD, VAR_POSITIONAL = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
PREFIX = "arg-"  # of the field of a parameter, whose name may be one of ours
REST, NAMED_REST = "args", "kwargs"
BY_NAME = {"int": int, "str": str, "bool": bool, "float": float}  # if other annotations cannot be resolved
Call = tuple[Sequence[Any], Mapping[str, Any]]
LOGICAL = {"true": True, "false": False}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a task: `kind` is its type without `None`, `is_optional` if it takes None."""

    name: str
    place: Any
    kind: Any
    is_optional: bool
    default: Any = inspect.Parameter.empty

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty

    @property
    def is_rest(self) -> bool:
        return self.place in (VAR_POSITIONAL, VAR_KEYWORD)


def declared(task: PostgresTask) -> list[inspect.Parameter]:
    return list(inspect.signature(task.func).parameters.values())[1 if task.takes_context else 0 :]


def parameters(task: PostgresTask) -> list[Parameter]:
    """The parameters of a call, without the context."""
    known = declared(task)
    try:
        hints = get_type_hints(task.func)
    except (NameError, TypeError, AttributeError):  # names that only a type checker imports
        hints = {one.name: BY_NAME.get(str(one.annotation), object) for one in known}
    found = []
    for one in known:
        hint = hints.get(one.name, object)
        kinds = get_args(hint) if get_origin(hint) in (Union, python_types.UnionType) else (hint,)
        others = [kind for kind in kinds if kind is not type(None)]
        kind = others[0] if len(others) == 1 else object
        found.append(Parameter(one.name, one.kind, kind, len(others) < len(kinds), one.default))
    return found


def fields_of(task: PostgresTask) -> dict[str, forms.Field]:
    """A field for each parameter; `*args` and `**kwargs` take JSON."""
    fields: dict[str, forms.Field] = {}
    for one in parameters(task):
        if one.place is VAR_POSITIONAL:
            label = _("*%(name)s, a JSON array, optional") % {"name": one.name}
            fields[REST] = OptionField(types.json_array, label=label, widget=json_widget('[1, "two"]'))
        elif one.place is VAR_KEYWORD:
            label = _("**%(name)s, a JSON object, optional") % {"name": one.name}
            fields[NAMED_REST] = OptionField(types.json_object, label=label, widget=json_widget('{"name": 1}'))
        else:
            fields[f"{PREFIX}{one.name}"] = field_of(one)
    return fields


def field_of(one: Parameter) -> forms.Field:
    """The field of one parameter: its label tells the type, its placeholder what an empty field stands for."""
    reader, what = reader_of(one.kind)
    is_required = not (one.has_default or one.is_optional)
    empty = "" if is_required else default_of(one)
    choices = list(LOGICAL) if one.kind is bool else list(map(str, choices_of(one.kind)))
    if choices:
        widget: forms.Widget = forms.Select(choices=[("", empty or "…"), *((text, text) for text in choices)])
    elif is_json(one.kind):
        widget = json_widget(empty)
    else:
        widget = forms.TextInput(attrs={"placeholder": empty, "autocomplete": "off"})
    return OptionField(
        named(one.name, reader),
        label=f"{one.name} ({what})",
        required=is_required,
        strip=one.kind is not str,
        widget=widget,
        error_messages={"required": _("%(name)s: give a value.") % {"name": one.name}},
    )


def default_of(one: Parameter) -> str:
    """The value that an empty field stands for; that of a secret is not shown."""
    if one.has_default and SecretFinder().is_secret(one.name):
        return _("its default")
    return _("default: %(value)s") % {"value": repr(one.default)} if one.has_default else "None"


def json_widget(placeholder: str) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": 2, "placeholder": placeholder})


def choices_of(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def is_json(kind: Any) -> bool:
    return kind not in READERS and not choices_of(kind)


def reader_of(kind: Any) -> tuple[Callable[[str], Any], str]:
    """The reader of a parameter's text, and its type as a label tells it."""
    if kind in READERS:
        return READERS[kind], kind.__name__
    if choices := choices_of(kind):
        return {str(choice): choice for choice in choices}.__getitem__, _("one of these")
    plain = get_origin(kind) or kind
    if isinstance(plain, type) and plain not in (object, str) and issubclass(plain, Mapping):
        return types.json_object, _("JSON object")
    if isinstance(plain, type) and plain not in (object, str) and issubclass(plain, Sequence | set | frozenset):
        return types.json_array, _("JSON array")
    return types.json_value, "JSON"


def named(name: str, reader: Callable[[str], Any]) -> Callable[[str], Any]:
    """The reader with the parameter's name before its complaint."""

    def read(written: str) -> Any:
        try:
            return reader(written)
        except (ArgumentTypeError, ValueError, ArithmeticError) as error:
            raise ArgumentTypeError(f"{name}: {error}") from error
        except LookupError as error:
            raise ArgumentTypeError(_("%(name)s: choose one of the values.") % {"name": name}) from error

    return read


def whole(written: str) -> int:
    if not reading.WHOLE.fullmatch(written):
        raise reading.Unreadable(_("%(text)s is not a whole number.") % {"text": reading.shown(written)})
    return int(written)


def written_date(written: str) -> str:
    try:
        return date.fromisoformat(written).isoformat()
    except ValueError as error:
        sentence = _("%(text)s is not a date: write it like 2030-01-31.")
        raise reading.Unreadable(sentence % {"text": reading.shown(written)}) from error


def written_time(written: str) -> str:
    try:
        return datetime.fromisoformat(written).isoformat()
    except ValueError as error:
        sentence = _("%(text)s is not a time: write it like 2030-01-31T03:00:00+02:00.")
        raise reading.Unreadable(sentence % {"text": reading.shown(written)}) from error


def written_uuid(written: str) -> str:
    try:
        return str(UUID(written))
    except ValueError as error:
        raise reading.Unreadable(_("%(text)s is not a UUID.") % {"text": reading.shown(written)}) from error


# What JSON has no type for is passed as text, as `enqueue` asks for it.
READERS: dict[Any, Callable[[str], Any]] = {
    int: whole,
    float: lambda written: float(reading.decimal(written)),
    bool: LOGICAL.__getitem__,
    str: types.text,
    Decimal: lambda written: str(reading.decimal(written)),
    date: written_date,
    datetime: written_time,
    UUID: written_uuid,
}


class IncompleteCall(ValueError):
    """These values do not make a call of the task."""


def call_of(task: PostgresTask, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The call that the fields' values make, by position as far as possible. Raises IncompleteCall.

    An empty field leaves its parameter out if that has a default, and stands for None otherwise.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = dict(values.get(NAMED_REST) or {})
    left_out = ""
    for one in parameters(task):
        if one.is_rest:
            continue
        value = values[f"{PREFIX}{one.name}"]
        if one.name in kwargs and one.place is not POSITIONAL_ONLY:
            raise IncompleteCall(_("%(name)s has a field of its own: remove it from the others.") % {"name": one.name})
        if value is None and one.has_default:
            left_out = left_out or one.name
        elif one.place in (KEYWORD_ONLY, POSITIONAL_OR_KEYWORD) and (left_out or one.place is KEYWORD_ONLY):
            kwargs[one.name] = value
        elif left_out:
            raise IncompleteCall(needs(left_out, one.name))
        else:
            args.append(value)
    if values.get(REST) and left_out:
        raise IncompleteCall(needs(left_out, "*"))
    return [*args, *(values.get(REST) or ())], kwargs


def needs(left_out: str, name: str) -> str:
    return _("%(left_out)s: give a value, because %(name)s comes after it.") % {"left_out": left_out, "name": name}


def written_call(task: PostgresTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the texts of the fields that make this call; None if no fields make it."""
    places, names, values = list(args), dict(kwargs), dict[str, str]()
    known = parameters(task)
    for one in known:
        if one.place is VAR_POSITIONAL:
            values[REST], places = json.dumps(places, ensure_ascii=False) if places else "", []
        elif places and one.place in (POSITIONAL_ONLY, POSITIONAL_OR_KEYWORD):
            values[f"{PREFIX}{one.name}"] = written(one, places.pop(0))
        elif one.name in names and not one.is_rest:
            values[f"{PREFIX}{one.name}"] = written(one, names.pop(one.name))
    if names and any(one.place is VAR_KEYWORD for one in known):
        values[NAMED_REST] = json.dumps(names, ensure_ascii=False)
    try:
        read = {name: field.clean(values.get(name, "")) for name, field in fields_of(task).items()}
        return values if is_same_call(task, call_of(task, read), (args, kwargs)) else None
    except (forms.ValidationError, IncompleteCall):
        return None


def written(one: Parameter, value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if is_json(one.kind) or one.kind is bool else str(value)


def is_same_call(task: PostgresTask, one: Call, other: Call) -> bool:
    """True if both give every parameter the same value, by position or by name."""
    known = inspect.Signature(declared(task))
    try:
        return known.bind(*one[0], **one[1]).arguments == known.bind(*other[0], **other[1]).arguments
    except TypeError:
        return False
