"""The reference page of the API, made from its OpenAPI document: no script, nothing from elsewhere."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard.api.base import api
from dashboard.layout import page, site_of
from dashboard.site import RowlockAdminSite

DEEPEST = 6  # levels of a body that are described
METHODS = ("get", "post", "put", "patch", "delete")
Document = Mapping[str, Any]


class FieldRow(NamedTuple):
    """One parameter or one field of a body; `name` has the names of those around it: `items[].waits_for.mode`."""

    name: str
    place: str
    kind: str
    is_required: bool
    text: str

    @property
    def words(self) -> str:
        """Its place, its kind, and whether it must be there."""
        return ", ".join(filter(None, (self.place, self.kind, "required" if self.is_required else "")))


class Operation(NamedTuple):
    """One operation, as the page shows it; the examples are JSON."""

    id: str
    method: str
    path: str
    summary: str
    text: str
    parameters: list[FieldRow]
    body: list[FieldRow]
    request: str
    answer: list[FieldRow]
    status: str
    response: str
    command: str


def reference(request: HttpRequest) -> HttpResponse:
    """The page in the site that has the operators' pages, with its login."""
    site = cast("RowlockAdminSite", site_of(request))
    answer: HttpResponse = site.page_view(every_operation)(request)
    return answer


@require_safe
def every_operation(request: HttpRequest) -> HttpResponse:
    """Every operation with its parameters, fields and examples."""
    document = api.get_openapi_schema(path_prefix=request.path.removesuffix("docs/"))
    groups = grouped(document, request.build_absolute_uri("/").rstrip("/"))
    return page(request, "api/reference.html", _("API"), {"groups": groups, "info": document["info"]})


def grouped(document: Document, host: str) -> dict[str, list[Operation]]:
    """The operations by their first tag, in the order of the document."""
    groups: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method in METHODS:
            if found := methods.get(method):
                tag = (found.get("tags") or ["API"])[0]
                groups.setdefault(tag, []).append(operation(document, host, path, method, found))
    return groups


def operation(document: Document, host: str, path: str, method: str, found: Mapping[str, Any]) -> Operation:
    body, (status, answer) = body_of(found), answer_of(found)
    request = written(example_of(document, body)) if body else ""
    parameters = [parameter(document, one) for one in found.get("parameters", [])]
    headers = [row.name for row in parameters if row.place == "header" and row.is_required]
    return Operation(
        id=found["operationId"],
        method=method.upper(),
        path=path,
        summary=found.get("summary", ""),
        text=found.get("description", ""),
        parameters=parameters,
        body=list(rows(document, body)) if body else [],
        request=request,
        answer=list(rows(document, answer)) if answer else [],
        status=status,
        response=written(example_of(document, answer)) if answer else "",
        command=curl(method, host + path, headers, request),
    )


def parameter(document: Document, found: Mapping[str, Any]) -> FieldRow:
    schema = found["schema"]
    text = found.get("description") or schema.get("description", "")
    return FieldRow(found["name"], found["in"], kind_of(document, schema), found.get("required", False), text)


def body_of(found: Mapping[str, Any]) -> Any:
    return json_of(found.get("requestBody", {}))


def answer_of(found: Mapping[str, Any]) -> tuple[str, Any]:
    """The status and the schema of the answer when all went well."""
    status = next((status for status in map(str, found["responses"]) if status.startswith("2")), "")
    answers = {str(status): answer for status, answer in found["responses"].items()}
    return status, json_of(answers.get(status, {}))


def json_of(found: Mapping[str, Any]) -> Any:
    return found.get("content", {}).get("application/json", {}).get("schema")


def resolved(document: Document, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind its references; of a choice the first that is not null."""
    while True:
        choices = [one for one in schema.get("anyOf", schema.get("allOf", [])) if one.get("type") != "null"]
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            own = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**document["components"]["schemas"][name], **own}
        elif choices:
            own = {key: value for key, value in schema.items() if key not in ("anyOf", "allOf")}
            schema = {**choices[0], **own}
        else:
            return schema


def rows(document: Document, schema: Mapping[str, Any], before: str = "", level: int = 0) -> Iterator[FieldRow]:
    """The fields of a body, each followed by those inside of it."""
    schema = resolved(document, schema)
    if schema.get("type") == "array" and level < DEEPEST:
        yield from rows(document, schema.get("items", {}), f"{before}[]", level)
    for name, field in schema.get("properties", {}).items():
        whole = f"{before}.{name}" if before else name
        inner, is_required = resolved(document, field), name in schema.get("required", ())
        yield FieldRow(whole, "", kind_of(document, field), is_required, inner.get("description", ""))
        if level < DEEPEST:
            yield from rows(document, field, whole, level + 1)


def kind_of(document: Document, schema: Mapping[str, Any]) -> str:
    """The type in words: `integer, 1 to 100, or null`."""
    found = resolved(document, schema)
    if "enum" in found:
        words = [" | ".join(json.dumps(value) for value in found["enum"])]
    elif "const" in found:
        words = [json.dumps(found["const"])]
    else:
        words = [found.get("format") or found.get("type", "any")]
    least, most = found.get("minimum"), found.get("maximum")
    if least is not None and most is not None:
        words.append(f"{least} to {most}")
    if "maxLength" in found:
        words.append(f"at most {found['maxLength']} characters")
    if any(one.get("type") == "null" for one in schema.get("anyOf", [])):
        words.append("or null")
    return ", ".join(words)


PLACEHOLDERS: dict[str, Any] = {
    "string": "…",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "object": {},
    "date-time": "2026-11-21T03:10:00Z",
}


def example_of(document: Document, schema: Mapping[str, Any], level: int = 0) -> Any:
    """A value that fits the schema, from its examples where it has some."""
    found = resolved(document, schema)
    for known in ("examples", "enum"):
        if found.get(known):
            return found[known][0]
    if found.get("default") is not None:
        return found["default"]
    if level < DEEPEST and "properties" in found:
        return {name: example_of(document, field, level + 1) for name, field in found["properties"].items()}
    if found.get("type") == "array":
        return [example_of(document, found.get("items", {}), level + 1)] if level < DEEPEST else []
    return PLACEHOLDERS.get(found.get("format", ""), PLACEHOLDERS.get(found.get("type", "")))


def written(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def curl(method: str, url: str, headers: list[str], body: str) -> str:
    """The request as a command for a shell."""
    values = {"Idempotency-Key": "$(uuidgen)", "If-Match": '\\"4\\"'}
    words = ["curl", '-H "Authorization: Bearer $TOKEN"']
    words += [f'-H "{name}: {values.get(name, "…")}"' for name in headers if name != "Authorization"]
    if method != "get":
        words.insert(1, f"-X {method.upper()}")
    if body:
        quoted = json.dumps(json.loads(body), ensure_ascii=False).replace("'", "'\\''")
        words += ['-H "Content-Type: application/json"', f"-d '{quoted}'"]
    return " \\\n  ".join(
        [" ".join(words[: 2 if method == "get" else 3]), *words[2 if method == "get" else 3 :], f'"{url}"']
    )
