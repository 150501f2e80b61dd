"""What the tests of the orders share."""

from tests.smtp import smtp  # noqa: F401  a fixture
