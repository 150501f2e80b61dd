"""The worker: a supervisor process, and children that claim, run and end tasks."""
