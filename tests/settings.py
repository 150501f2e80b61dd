"""The project's settings as the tests run them: the same database options, cheap passwords, plain static files."""

from dashboard.settings import *  # noqa: F403

SECRET_KEY = "of the tests alone"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_AUTOREFRESH = WHITENOISE_USE_FINDERS = True  # nothing is collected for the tests
# A page's short patience is not the tests': one of them may wait for a lock, or drop a database on a busy machine.
DATABASES["default"]["OPTIONS"].pop("options", None)  # noqa: F405
SHARED_LOOK_SECONDS = 0  # what one test has looked at is not what the next one sees
