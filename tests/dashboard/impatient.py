"""The gunicorn worker with deadlines that a test can wait for, or that never come."""

from dashboard.serving import ServingWorker


class ImpatientWorker(ServingWorker):
    head_seconds = 0.5
    body_seconds = 0.5
    answer_seconds = 0.5


class CrowdedWorker(ServingWorker):
    """Waits for few clients, and for few bytes of theirs."""

    head_seconds = body_seconds = 600.0
    most_waits = 10
    most_held = 100_000


class PatientWorker(ServingWorker):
    head_seconds = body_seconds = answer_seconds = linger_seconds = 600.0
