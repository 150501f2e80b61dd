"""Times on the stock lists are written as everywhere else: to the second and with their zone."""

import pytest

from tasks.models import Attempt
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("language", ["en", "ru"])
def test_a_time_can_be_compared_with_a_log(language):
    at = "2026-01-01T03:12:05Z"
    Attempt.objects.create(task=rows.failed(), number=1, worker_id="w", outcome="failed", finished_at=at)
    page = client_of("Viewers").get("/admin/tasks/attempt/", headers={"accept-language": language})
    assert "2026-01-01 03:12:05 UTC" in page.text
