"""Commands that cron starts: one run at a time across machines, each recorded, and missing runs reported."""
