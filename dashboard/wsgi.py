"""The WSGI application that gunicorn serves."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
application = get_wsgi_application()

from dashboard.attention import inbox  # noqa: E402  needs the apps

inbox.load()  # a module that cannot be imported stops the start, not the first page
