"""The API's addresses: `path("api/v1/", include("dashboard.api.urls"))` puts it into a project of your own.

It needs `rowlock[api]`.
"""

from dashboard.api.base import api

ROUTERS = {"/tasks": "tasks"}

for prefix, module in ROUTERS.items():
    api.add_router(prefix, f"dashboard.api.{module}.router")
urlpatterns, app_name, _namespace = api.urls
