"""The API's addresses: `path("api/v1/", include("dashboard.api.urls"))` puts it into a project of your own.

It needs `rowlock[api]`.
"""

from django.urls import path

from dashboard.api.base import api
from dashboard.api.guard import guarded
from dashboard.api.reference import reference

ROUTERS = {
    "tasks": "/tasks",
    "bulk": "/tasks",
    "events": "/tasks",
    "queues": "/queues",
    "limits": "/limits",
    "workers": "/workers",
    "locks": "/locks",
    "schedules": "/schedules",
    "failures": "/failures",
    "attention": "/attention",
    "audit": "/audit",
    "lab": "/lab",
    "summary": "",
}

for module, prefix in ROUTERS.items():
    api.add_router(prefix, f"dashboard.api.{module}.router")
patterns, _app, app_name = api.urls
urlpatterns = [path("docs/", reference, name="docs"), *guarded(patterns)]
