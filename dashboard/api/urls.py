"""The API's addresses: `path("api/v1/", include("dashboard.api.urls"))` puts it into a project of your own.

It needs `rowlock[api]`.
"""

from dashboard.api.base import api
from dashboard.api.guard import guarded

ROUTERS = {"tasks": "/tasks", "bulk": "/tasks", "events": "/tasks"}

for module, prefix in ROUTERS.items():
    api.add_router(prefix, f"dashboard.api.{module}.router")
patterns, _app, app_name = api.urls
urlpatterns = guarded(patterns)
