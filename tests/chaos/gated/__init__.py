"""An app of handlers that end when a test says so: however slow the machine is, they have not ended before."""
