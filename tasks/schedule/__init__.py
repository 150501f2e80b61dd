"""Commands that cron starts: one run at a time across machines, each kept, and those seen that fail to appear."""
