"""Runs in a process where `tests` is the package of django-tasks: `run.py CHECKOUT`."""

import sys
from pathlib import Path
from unittest import TestLoader, TestSuite, TextTestRunner

HERE = Path(__file__).resolve().parent
sys.path[:1] = [sys.argv[1], str(HERE.parents[2])]

import django  # noqa: E402

django.setup()

from importlib import import_module  # noqa: E402

from django.test import TestCase, override_settings  # noqa: E402

sys.path.insert(0, str(HERE))
from backends import OUT_OF_SCOPE, SUBSTITUTES  # noqa: E402


def ours(case, settings):
    """Their class on our backend, with a database, and without the tests that are about something else."""
    body = {name: None for name in dir(case) if (case.__name__, name) in OUT_OF_SCOPE}
    found = type(case.__name__, (case, TestCase), {**body, "databases": {"default"}})
    return override_settings(TASKS=settings, ROOT_URLCONF="tests.urls")(found)


suite = TestSuite()
for (module, name), settings in SUBSTITUTES.items():
    case = getattr(import_module(f"tests.tests.{module}"), name)
    suite.addTests(TestLoader().loadTestsFromTestCase(ours(case, settings)))
result = TextTestRunner(verbosity=2).run(suite)
print(f"{result.testsRun} tests of django-tasks ran on our backend; {len(OUT_OF_SCOPE)} are about something else")
sys.exit(not result.wasSuccessful())
