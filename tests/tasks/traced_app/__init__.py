"""A project whose handlers are traced where the environment names a file for the spans."""

import os

if "TEST_SPANS" in os.environ:
    from tests.tasks.traced_app import sdk as sdk
