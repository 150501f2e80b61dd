"""Full collections of garbage pass over what a web process has loaded."""

import gc

from dashboard import serving


def test_what_is_loaded_is_left_out_of_collections() -> None:
    try:
        serving.freeze_garbage()
        assert gc.get_freeze_count() > 10 * len(gc.get_objects())
    finally:
        gc.unfreeze()
