"""Ways over from other queues."""
