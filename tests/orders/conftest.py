"""What the tests of the orders share."""

from tests.smtp import patient_smtp, smtp  # noqa: F401  fixtures
