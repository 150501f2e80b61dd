"""OpenTelemetry's SDK without an exporter: every span is made, and nobody gets it."""

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
