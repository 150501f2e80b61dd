"""One small module per page: parse, call, render."""
