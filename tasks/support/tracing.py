"""Traces by OpenTelemetry, where the extra `otel` is installed: a task runs in the trace that enqueued it.

Without the extra nothing of OpenTelemetry is imported. Without a tracer provider no span is made, and a task passes on
the `traceparent` of its row. `RUNNING` is the attempt that this thread or coroutine runs: log lines and SQL comments
name it.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from types import TracebackType
from typing import Any, Self

from django.db.backends.base.base import BaseDatabaseWrapper

from tasks import conf

PLACE = "{trace_id}"
FLUSH_MS = 2000


@cache
def api() -> Any:
    """The module `opentelemetry.trace`, imported when first needed; None without the extra."""
    try:
        from opentelemetry import trace
    except ImportError:  # the extra is optional
        return None
    return trace


@lru_cache(maxsize=4)
def _tracer_of(provider: Any) -> Any:
    return provider.get_tracer("rowlock")


def tracer() -> Any:
    """Our tracer; None while nobody has set a provider: then no span would reach anybody."""
    trace = api()
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else _tracer_of(provider)


def _context_of(traceparent: str) -> Any:
    """The span context of a `traceparent` of a row, whose form the database has checked."""
    trace = api()
    flags = trace.TraceFlags(int(traceparent[53:], 16))
    return trace.SpanContext(int(traceparent[3:35], 16), int(traceparent[36:52], 16), is_remote=True, trace_flags=flags)


def _traceparent_of(span: Any) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _attributes(operation: str, kind: str, queue_name: str, task_path: str) -> dict[str, Any]:
    """By the semantic conventions for messaging; a queue is the destination."""
    return {
        "messaging.system": "rowlock",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue_name,
        "code.function.name": task_path,
    }


def _fail(span: Any, error_type: str) -> None:
    """Mark the span as failed, without the error's message: that may hold what nobody should read."""
    span.set_attribute("error.type", error_type)
    span.set_status(api().StatusCode.ERROR, error_type)


@contextmanager
def publishing(queue_name: str, task_path: str) -> Iterator["Published"]:
    """The span of an enqueue; what the block writes takes `Published.traceparent`."""
    ours = tracer()
    if ours is None:
        running = RUNNING.get()
        yield Published(running.traceparent if running else None)
        return
    trace = api()
    attributes = _attributes("publish", "send", queue_name, task_path)
    span = ours.start_span(f"publish {queue_name}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield Published(_traceparent_of(span), span)
        except BaseException as error:
            _fail(span, type(error).__qualname__)
            raise


@dataclass(slots=True)
class Published:
    """The columns that an enqueue writes: `traceparent` of its span, or of the attempt that enqueues."""

    traceparent: str | None
    _span: Any = None

    def note(self, attribute: str, value: int | str) -> None:
        """Tell the id or the number of the tasks."""
        if self._span is not None:
            self._span.set_attribute(f"messaging.{attribute}", value)


@dataclass(slots=True, eq=False)
class Running:
    """An attempt while it runs, as its log lines, its statements and what it enqueues name it."""

    task_id: int
    attempt: int
    worker_id: str
    traceparent: str | None  # that of its row; of its own span, if somebody records it

    @property
    def comment(self) -> str:
        """The beginning of every statement of the handler: `/* rowlock task=4711 traceparent=00-… */ `.

        Empty outside of a trace: the driver would parse the same statement anew for each task, in ten microseconds.
        """
        return f"/* rowlock task={self.task_id} traceparent={self.traceparent} */ " if self.traceparent else ""


class Recording:
    """The span of an attempt: `with Recording(tracer, attempt, queue_name, task_path) as span`."""

    def __init__(self, tracer: Any, attempt: Running, queue_name: str, task_path: str) -> None:
        trace = api()
        attributes = _attributes("process", "process", queue_name, task_path)
        attributes["messaging.message.id"] = str(attempt.task_id)
        attributes["messaging.client.id"] = attempt.worker_id
        attributes["rowlock.attempt"] = attempt.attempt
        parent = trace.NonRecordingSpan(_context_of(attempt.traceparent)) if attempt.traceparent else trace.INVALID_SPAN
        self._span = tracer.start_span(
            f"process {queue_name}",
            context=trace.set_span_in_context(parent),
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
        )
        attempt.traceparent = _traceparent_of(self._span) or attempt.traceparent
        self._scope = trace.use_span(
            self._span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        )

    def __enter__(self) -> Self:
        self._scope.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            _fail(self._span, kind.__qualname__)
        self._scope.__exit__(None, None, None)

    @property
    def is_kept(self) -> bool:
        """False if the tracer has chosen not to keep this span."""
        return bool(self._span.is_recording())

    def link(self, earlier: str | None) -> None:
        """Link the span to that of an earlier attempt."""
        if earlier:
            self._span.add_link(_context_of(earlier), {"rowlock.link": "earlier attempt"})

    def fail(self, error_type: str, traceback: str) -> None:
        """Record how the attempt failed; `traceback` is the redacted one, which its row keeps too."""
        event = {"exception.type": error_type, "exception.stacktrace": traceback}
        self._span.add_event("exception", event)
        _fail(self._span, error_type)


RUNNING: ContextVar[Running | None] = ContextVar("rowlock_running", default=None)


def trace_id() -> str:
    """The id of the trace that this thread or coroutine works for; empty if there is none."""
    running = RUNNING.get()
    traceparent = running.traceparent if running else None
    if traceparent is None and tracer() is not None:
        traceparent = _traceparent_of(api().get_current_span())
    return trace_id_of(traceparent)


def trace_id_of(traceparent: str | None) -> str:
    return traceparent[3:35] if traceparent else ""


def trace_url(traceparent: str | None) -> str:
    """The page of the trace, by ROWLOCK_TRACE_URL; empty without a trace or a setting that is right."""
    address = conf.get("TRACE_URL")
    return str(address).replace(PLACE, trace_id_of(traceparent)) if traceparent and not problem_of(address) else ""


def problem_of(address: Any) -> str:
    """The problem with a value of ROWLOCK_TRACE_URL; empty if nothing is. No other scheme becomes a link."""
    if not address or (re.match(r"https?://[^/\s{]", str(address)) and PLACE in str(address)):
        return ""
    return f"TRACE_URL is {address!r}: write it like https://traces.example.com/trace/{PLACE}."


def name_statements(connection: BaseDatabaseWrapper) -> None:
    """Let this connection's statements begin with the comment of the attempt that sends them, if spans are made.

    The wrapper is the outermost one: whoever adds another for a while removes the last. Statements that the driver
    prepares stay as they are: it knows them by their text.
    """
    wrappers, options = connection.execute_wrappers, connection.settings_dict["OPTIONS"]
    if connection.vendor != "postgresql" or options.get("prepare_threshold") is not None or tracer() is None:
        return
    if _execute_named not in wrappers:
        wrappers.insert(0, _execute_named)


def _execute_named(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
    running = RUNNING.get()
    return execute(running.comment + sql if running and isinstance(sql, str) else sql, params, many, context)


def flush() -> None:
    """Export what waits, for at most two seconds: a worker process ends without Python's own clean-up."""
    if tracer() is not None and (force := getattr(api().get_tracer_provider(), "force_flush", None)):
        force(FLUSH_MS)
