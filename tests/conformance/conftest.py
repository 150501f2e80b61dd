"""One fixture for each kind of backend; `any_backend`, `running_backend`, … run the test once for each that fits."""

import pytest

from tests.conformance.subjects import DEFERRING, IN_PROCESS, KEEPING, RUNNING, SUBJECTS, Subject


def configured(subjects: list[Subject]):
    """A fixture that puts each of these backends into TASKS in turn."""

    @pytest.fixture(params=[parameter(subject) for subject in subjects])
    def subject(request, settings) -> Subject:
        settings.TASKS = request.param.settings()
        return request.param

    return subject


def parameter(subject: Subject):
    """Another process sees only what is committed."""
    mark = pytest.mark.django_db(transaction=not subject.in_process)
    return pytest.param(subject, id=subject.name, marks=mark)


any_backend = configured(SUBJECTS)
running_backend = configured(RUNNING)
in_process_backend = configured(IN_PROCESS)
deferring_backend = configured(DEFERRING)
keeping_backend = configured(KEEPING)
