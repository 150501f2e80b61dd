"""System checks: what `manage.py check` says of the queue's configuration."""
