"""The place of a failure: the last frame of the project's own code, the same on every host."""

import json
from collections.abc import Callable

import pytest

from tasks.worker import failures
from tasks.worker.failures import LONGEST_PLACE, place_of

HERE = "tests/tasks/worker/test_places.py"


def error_of(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:  # noqa: BLE001  as the worker catches it
        return error
    raise AssertionError("nothing was raised")


class Client:
    def get(self) -> None:
        raise ConnectionError("order 4711")


def read() -> None:
    json.loads("{")


def made_at(path: str, name: str) -> Callable[[], None]:
    """A function whose code seems to lie there."""
    scope = {"__name__": name}
    exec(compile("def broken():\n    raise ValueError", path, "exec"), scope)
    return scope["broken"]


def test_it_is_the_innermost_function_of_the_project():
    assert place_of(error_of(Client().get)) == f"{HERE}:Client.get"


def test_frames_of_libraries_are_passed_over():
    assert place_of(error_of(read)) == f"{HERE}:read"


def test_of_a_chain_the_last_error_counts():
    def chained() -> None:
        try:
            Client().get()
        except ConnectionError as error:
            raise RuntimeError from error

    assert place_of(error_of(chained)).endswith("chained")


@pytest.mark.parametrize(
    ("path", "name", "place"),
    [
        ("/srv/a/shop/tasks.py", "shop.tasks", "shop/tasks.py:broken"),
        ("/home/b/x/shop/tasks.py", "shop.tasks", "shop/tasks.py:broken"),
        ("/srv/a/shop/__init__.py", "shop", "shop/__init__.py:broken"),
        ("/srv/a/script.py", "__main__", "script.py:broken"),
    ],
)
def test_the_folder_of_the_checkout_is_no_part_of_it(path, name, place):
    assert place_of(error_of(made_at(path, name))) == place


def test_it_is_one_line_and_not_endless():
    assert place_of(error_of(made_at("/srv/a\nb.py", "b"))) == r"a\nb.py:broken"
    assert len(place_of(error_of(made_at(f"/srv/{'x' * 300}.py", "x")))) == LONGEST_PLACE


def test_an_error_that_was_never_raised_has_none():
    assert place_of(ValueError()) == ""


LIBRARIES = [json.__file__, pytest.__file__, "<frozen importlib>", "/x/dist-packages/y.py", failures.__file__]


@pytest.mark.parametrize("path", LIBRARIES)
def test_python_packages_and_the_queue_are_libraries(path):
    assert failures.is_library(path)


def test_without_a_frame_of_the_project_the_last_one_counts():
    error = error_of(made_at("/x/site-packages/lib/a.py", "lib.a"))
    assert place_of(error.with_traceback(error.__traceback__.tb_next)) == "lib/a.py:broken"
