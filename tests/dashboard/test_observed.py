"""OpenTelemetry observes the gauges of /metrics."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from dashboard import metrics
from tasks.models import Task


def observed(reader: InMemoryMetricReader) -> dict[str, dict[tuple, float]]:
    """Each metric with its values by labels."""
    data = reader.get_metrics_data()
    return {
        metric.name: {tuple(sorted(point.attributes.items())): point.value for point in metric.data.data_points}
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.mark.django_db(transaction=True)
def test_gauges_are_observed():
    Task.objects.create(task_path="tests.tasks.handlers.add", queue_name="mail")
    reader = InMemoryMetricReader()
    metrics.observe(MeterProvider([reader]))
    found = observed(reader)
    assert found["rowlock.queue_tasks"][("queue", "mail"), ("state", "ready")] == 1
    assert set(found) == {name.replace("_", ".", 1) for names in metrics.OBSERVED.values() for name in names}
    Task.objects.create(task_path="tests.tasks.handlers.add", queue_name="mail")
    assert observed(reader)["rowlock.queue_tasks"][("queue", "mail"), ("state", "ready")] == 2
