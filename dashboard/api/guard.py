"""The outermost layer of the API: what reaches no operation is answered in the API's form too."""

from collections.abc import Callable, Iterable
from functools import wraps
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import URLPattern, URLResolver, re_path
from django.utils import translation
from django.utils.cache import add_never_cache_headers
from django.views.decorators.csrf import csrf_exempt

from dashboard import middleware
from dashboard.api.base import READS, Problem, answer, problem_of

View = Callable[..., HttpResponseBase]
JSON = "application/json"
MOST_BODY = 1024**2  # bytes
ROOT = "api-root"  # the name of the address that stands before all others in the document


class NotThisMethod(Problem):
    status = HTTPStatus.METHOD_NOT_ALLOWED


class TooLarge(Problem):
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class NotJson(Problem):
    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


def guarded(patterns: Iterable[URLPattern | URLResolver]) -> list[URLPattern]:
    """These addresses behind the guard, and a refusal for every other one below them."""
    views = [
        URLPattern(one.pattern, guard(nothing if one.name == ROOT else one.callback), one.default_args, one.name)
        for one in patterns
        if isinstance(one, URLPattern)
    ]
    return [*views, re_path("", guard(nothing))]


def guard(view: View) -> View:
    """No cookie is read, no answer is stored, texts are English, and every refusal is a ProblemAnswer.

    A fault of ours goes on to Django's handler of errors. Writes commit by themselves, so ATOMIC_REQUESTS must not hold
    them together.
    """

    @csrf_exempt
    @transaction.non_atomic_requests
    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with translation.override("en"):
            try:
                response = within_limits(view, request, *args, **kwargs)
            except RequestDataTooBig:
                response = answer(too_large())
            except Exception as error:
                if (problem := problem_of(error, request)) is None:
                    raise
                response = answer(problem)
        if not response.has_header("Cache-Control"):
            add_never_cache_headers(response)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return answered


def within_limits(view: View, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
    """Answer a well-formed request; the statements have the limits of a page."""
    if request.method not in READS:
        refuse_form(request)
    if middleware.PAGE_MIDDLEWARE in settings.MIDDLEWARE:  # our own project limits its sessions when they connect
        response = view(request, *args, **kwargs)
    else:
        with middleware.limits():
            response = view(request, *args, **kwargs)
    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = response.headers["Allow"]
        raise NotThisMethod(f"{request.method} is not possible here: send {allowed}.", Allow=allowed)
    return response


def refuse_form(request: HttpRequest) -> None:
    """Raise a Problem for a body that is too large or no JSON."""
    if len(request.body) > MOST_BODY:
        raise too_large()
    if request.content_type != JSON:
        raise NotJson(f"Send the body as JSON, with the header Content-Type: {JSON}.")


def too_large() -> Problem:
    return TooLarge(f"The body has more than {MOST_BODY:,} bytes: send less at a time.")


def nothing(request: HttpRequest) -> HttpResponseBase:
    raise Http404("There is no such address: see openapi.json for those that there are.")
