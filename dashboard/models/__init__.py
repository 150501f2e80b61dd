"""Tables of the dashboard, one module a subject."""

from dashboard.models.api import ApiCount, ApiRequest, ApiToken, Installation
from dashboard.models.attention import RANGES, Acknowledgement, AlertChannel, Incident, TableSize, Threshold
from dashboard.models.locks import Backend, Deadlocks, DemoRow, LabRun, LockWait, SavedView, TimeIndex

__all__ = [
    "RANGES",
    "Acknowledgement",
    "AlertChannel",
    "ApiCount",
    "ApiRequest",
    "ApiToken",
    "Backend",
    "Deadlocks",
    "DemoRow",
    "Incident",
    "Installation",
    "LabRun",
    "LockWait",
    "SavedView",
    "TableSize",
    "Threshold",
    "TimeIndex",
]
