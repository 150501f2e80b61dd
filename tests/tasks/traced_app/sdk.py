"""OpenTelemetry's SDK: spans go to the file TEST_SPANS as JSON, when somebody flushes or after a minute.

It also does what an instrumentation of the database does: it makes a span for each statement of Django's connection.
"""

import os

from django.db.backends.signals import connection_created
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult


class FileExporter(SpanExporter):
    """One line for each span, in whole writes: several processes share the file."""

    def __init__(self, path):
        self.file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def export(self, spans):
        os.write(self.file, "".join(span.to_json(indent=None) + "\n" for span in spans).encode())
        return SpanExportResult.SUCCESS


def traced(execute, sql, params, many, context):
    with trace.get_tracer("database").start_as_current_span("SQL", attributes={"db.query.text": str(sql)}):
        return execute(sql, params, many, context)


def instrument(connection, **_):
    if traced not in connection.execute_wrappers:
        connection.execute_wrappers.append(traced)


provider = TracerProvider()
exporter = FileExporter(os.environ["TEST_SPANS"])
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
trace.set_tracer_provider(provider)
connection_created.connect(instrument)
