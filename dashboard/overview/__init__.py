"""What the first page shows, but for what needs attention."""
