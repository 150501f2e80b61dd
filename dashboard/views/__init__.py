"""One small module for each page: parse, call, render."""
