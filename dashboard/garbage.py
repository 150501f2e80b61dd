"""What Python's collector of garbage does to a process of the web server."""

import gc

from django.urls import get_resolver


def freeze() -> None:
    """Leave what is loaded by now out of each full collection, for which all threads stand still.

    Else each of them goes through a hundred thousand objects of modules and models, and finds nothing.
    """
    list(get_resolver().url_patterns)  # loads the modules of the pages
    gc.collect()
    gc.freeze()
