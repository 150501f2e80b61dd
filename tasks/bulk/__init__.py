"""Bulk actions on everything that matches a filter: requested on a page, run by a worker."""
