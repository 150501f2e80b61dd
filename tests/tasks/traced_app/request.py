"""`python -m tests.tasks.traced_app.request`: enqueue in a request's span, as an instrumented web process does."""

import django

django.setup()

from opentelemetry import trace  # noqa: E402

from tests.tasks.traced_app import tasks  # noqa: E402

with trace.get_tracer("web").start_as_current_span("POST /orders/", kind=trace.SpanKind.SERVER):
    tasks.look.enqueue()
    tasks.look_async.enqueue()
    tasks.pass_on.enqueue()
    tasks.fail.enqueue(password="hunter2")
