"""Formats of the stock admin pages, the same as on our own pages, in every language."""
