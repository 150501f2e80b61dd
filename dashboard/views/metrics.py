"""`/metrics`: for Prometheus with its token, and for staff who may see tasks."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from dashboard.metrics import exposition

PLAIN = "text/plain; charset=utf-8"
SEE = "tasks.view_task"
CLOSED = (
    "This page needs the token in METRICS_TOKEN (Authorization: Bearer ...), or the login of a member of staff "
    f"with the right {SEE}.\n"
)


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Serve a scrape; 401 without login, 403 for people who are not staff or lack the right."""
    if has_token(request) or (request.user.is_active and request.user.is_staff and request.user.has_perm(SEE)):
        return HttpResponse(exposition(), content_type=CONTENT_TYPE_LATEST)
    if request.user.is_authenticated:
        return HttpResponse(CLOSED, status=403, content_type=PLAIN)
    return HttpResponse(CLOSED, status=401, content_type=PLAIN, headers={"WWW-Authenticate": 'Bearer realm="metrics"'})


def has_token(request: HttpRequest) -> bool:
    """True if the request has the token; always False if the setting is empty."""
    scheme, _space, token = request.headers.get("Authorization", "").partition(" ")
    return (
        bool(settings.METRICS_TOKEN)
        and scheme.lower() == "bearer"
        and constant_time_compare(token.strip(), settings.METRICS_TOKEN)
    )
