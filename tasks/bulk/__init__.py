"""Actions on everything that matches a filter: asked for on a page, carried out by a worker, watched and stopped."""
