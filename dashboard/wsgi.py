"""The WSGI application that gunicorn serves."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
application = get_wsgi_application()

from tasks import panels  # noqa: E402  needs the apps

panels.load()  # a module that cannot be imported stops the start, not the first page
