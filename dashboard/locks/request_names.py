"""Show a web session's request in `pg_stat_activity`, by a comment before each of its statements.

Only requests that change something get it: they are few, hold locks, and are the ones that operators ask about. A
comment is free; setting application_name would cost a round trip. The path has no query string and no character that
could end the comment or look like a parameter.
"""

import re
from collections.abc import Callable
from typing import Any

from django.db import connection
from django.http import HttpRequest, HttpResponse

LONGEST_PATH = 120
COMMENT = re.compile(r"/\* (POST /[\w/.-]*) \*/ ", re.ASCII)
UNSAFE = re.compile(r"[^\w/.-]", re.ASCII)


class RequestNameMiddleware:
    """Puts the request's name before every statement of a POST."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return self.get_response(request)
        with connection.execute_wrapper(naming(request.path)):
            return self.get_response(request)


def naming(path: str) -> Callable[..., Any]:
    """An execute wrapper for Django's connection that puts the comment before the statement."""
    comment = f"/* POST {UNSAFE.sub('_', path)[:LONGEST_PATH]} */ "

    def execute_named(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        return execute(comment + sql if isinstance(sql, str) else sql, params, many, context)

    return execute_named


def split(query: str) -> tuple[str, str]:
    """Split a query into request and statement; without a comment the request is an empty text.

    >>> split("/* POST /admin/orders/order/7/change/ */ SELECT 1")
    ('POST /admin/orders/order/7/change/', 'SELECT 1')
    >>> split("SELECT 1")
    ('', 'SELECT 1')
    """
    match = COMMENT.match(query)
    return (match[1], query[match.end() :]) if match else ("", query)
