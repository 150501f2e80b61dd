"""One module per page: parse, call, render."""
