"""One fixture for each kind of backend; `any_backend`, `running_backend`, … run the test once for each that fits."""

import pytest

from tests.conformance.subjects import DEFERRING, KEEPING, RUNNING, SUBJECTS, Subject


def configured(subjects: list[Subject]):
    """A fixture that puts each of these backends into TASKS in turn."""

    @pytest.fixture(params=subjects, ids=lambda subject: subject.name)
    def subject(request, settings, db) -> Subject:
        settings.TASKS = request.param.settings()
        return request.param

    return subject


any_backend = configured(SUBJECTS)
running_backend = configured(RUNNING)
deferring_backend = configured(DEFERRING)
keeping_backend = configured(KEEPING)
