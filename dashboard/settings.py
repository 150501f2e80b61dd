"""Settings: every value that differs between machines comes from the environment.

Without DATABASE_URL the embedded PostgreSQL of this checkout is used; `dashboard.embedded` finds it.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import environ

from dashboard import environment
from tasks.compat import CSP_IN_DJANGO, TASKS_IN_DJANGO

env = environ.Env()
PACKAGES = Path(__file__).resolve().parent.parent
# The folder of manage.py and gunicorn.conf.py: the checkout, or `rowlock` among the packages when installed by pip.
BASE_DIR = PACKAGES if (PACKAGES / "manage.py").exists() else PACKAGES / "rowlock"
# An installed Rowlock keeps its state where it is started; the programs that it starts elsewhere inherit the folder.
if BASE_DIR != PACKAGES:
    os.environ.setdefault("ROWLOCK_VAR", str(Path.cwd() / "var"))
VAR_DIR = Path(os.environ.get("ROWLOCK_VAR") or BASE_DIR / "var")

DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env.str("SECRET_KEY", default="") or environment.generated_secret(VAR_DIR / "secret_key")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "dashboard.apps.QuietPostgresConfig",
    "django.contrib.staticfiles",
    *([] if TASKS_IN_DJANGO else ["django_tasks"]),
    *([] if CSP_IN_DJANGO else ["csp"]),
    "django_htmx",
    "axes",
    "dashboard.apps.DashboardConfig",
    "dashboard.apps.RowlockAdminConfig",
    "orders",
    "tasks",
    *env.list("ROWLOCK_APPS", default=[]),
]
MIDDLEWARE = [
    "dashboard.middleware.HealthMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware" if CSP_IN_DJANGO else "csp.middleware.CSPMiddleware",
    "dashboard.live.seats.SeatMiddleware",
    "dashboard.locks.identity.RequestNameMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "dashboard.middleware.PageMiddleware",
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "dashboard.urls"
WSGI_APPLICATION = "dashboard.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

DATABASES = {"default": environment.database_settings(env, VAR_DIR, sys.argv)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {"default": {"BACKEND": "tasks.backend.PostgresBackend"}}
vars().update(environment.mail_settings(env, VAR_DIR))
DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", default="Rowlock <orders@localhost>")
# Each missing key falls back to its environment variable: see tasks/conf.py.
ROWLOCK: dict[str, object] = {}
# Pattern runs create schemas and load the server, so on DATABASE_URL they are off by default.
ROWLOCK_LAB = env.bool("ROWLOCK_LAB", default=not env.str("DATABASE_URL", default=""))

# In order: refuse after too many guesses, refuse names that are too long, check the password.
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "dashboard.login.LongNameBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
# The browser's language, unless the reader has chosen one; commands always speak English.
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("ru", "Русский")]
LOCALE_PATHS = [PACKAGES / "dashboard" / "locale"]
FORMAT_MODULE_PATH = "dashboard.formats"
LANGUAGE_COOKIE_HTTPONLY = True
LANGUAGE_COOKIE_SAMESITE = "Lax"
LANGUAGE_COOKIE_AGE = 365 * 86_400
TIME_ZONE = env.str("TZ", default="") or "UTC"
USE_I18N = True
USE_TZ = True
USE_THOUSAND_SEPARATOR = False

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

# Plain HTTP on loopback by default; behind TLS set HTTPS=1.
HTTPS = env.bool("HTTPS", default=False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
if HTTPS:  # browsers accept these prefixed names only over TLS, from this host, for the whole site
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME, LANGUAGE_COOKIE_NAME = "__Host-session", "__Host-csrf", "__Host-language"
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SESSION_COOKIE_AGE = 12 * 3600  # one shift; Django's default is two weeks
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
CSP_DIRECTIVES: dict[str, list[str]] = {
    "default-src": ["'self'"],
    "img-src": ["'self'", "data:"],
    "object-src": ["'none'"],
    "base-uri": ["'none'"],
    "frame-ancestors": ["'none'"],
    "form-action": ["'self'"],
}
SECURE_CSP = CSP_DIRECTIVES
CONTENT_SECURITY_POLICY = {"DIRECTIVES": CSP_DIRECTIVES}

# Guesses are counted in the database, which all processes share, by name *and* address. So a guesser locks out nobody
# else, unless ten times as many guesses over all names lock the address. `axes_reset_username NAME` and `axes_reset_ip
# ADDRESS` let people in sooner.
AXES_HANDLER = "dashboard.guesses.GuessHandler"
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False  # else a machine that keeps trying would lock out for ever
AXES_RESET_ON_SUCCESS = True
AXES_USERNAME_CALLABLE = "dashboard.guesses.counted_name"
AXES_CLIENT_IP_CALLABLE = "dashboard.login.client_address"
AXES_LOCKOUT_CALLABLE = "dashboard.guesses.locked_out"
AXES_DISABLE_ACCESS_LOG = True  # a table that nobody reads or prunes
AXES_ENABLE_ADMIN = AXES_VERBOSE = False
# The number of own reverse proxies in front; each adds the address it saw to X-Forwarded-For.
PROXY_COUNT = env.int("PROXY_COUNT", default=int(HTTPS))

# Token for scraping /metrics without a login; empty: only logged-in staff may read it.
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {
            "class": "tasks.framework.log_lines.LineFormatter",
            "format": "%(asctime)s %(levelname)s %(name)s %(message)s",
        },
        "json": {"class": "tasks.framework.log_lines.JsonFormatter"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": environment.log_format(env)}},
    "root": {"handlers": ["stderr"], "level": env.str("LOG_LEVEL", default="INFO")},
    # The framework logs one line per task and state, too much at thousands of tasks a second; axes logs several per
    # login.
    "loggers": {name: {"level": "WARNING"} for name in ("django_tasks", "django.tasks", "axes")},
}
