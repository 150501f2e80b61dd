"""The project's settings for tests: the same database options, cheap passwords, plain static files."""

import os

from dashboard.settings import *  # noqa: F403

SECRET_KEY = "of the tests alone"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_AUTOREFRESH = WHITENOISE_USE_FINDERS = True  # tests collect no static files
# Without the pages' short timeouts: a test may wait for a lock, or drop a database on a busy machine.
DATABASES["default"]["OPTIONS"].pop("options", None)  # noqa: F405
if "TEST_PREPARE_THRESHOLD" in os.environ:  # see tests/chaos/test_pooler.py
    DATABASES["default"]["OPTIONS"]["prepare_threshold"] = int(os.environ["TEST_PREPARE_THRESHOLD"])  # noqa: F405
DATABASES["default"]["TEST"] = {"TEMPLATE": os.environ.get("ROWLOCK_TEST_TEMPLATE")}  # noqa: F405
SHARED_LOOK_SECONDS = 0  # tests must not see each other's cached results
