"""The first page, except "Needs attention"."""
