"""Garbage collection in a process of the web server."""

import gc

from django.urls import get_resolver


def freeze() -> None:
    """Exclude everything loaded so far from full collections, during which all threads stop.

    Otherwise each one scans a hundred thousand objects of modules and models for nothing.
    """
    list(get_resolver().url_patterns)  # imports the modules of the pages
    gc.collect()
    gc.freeze()
