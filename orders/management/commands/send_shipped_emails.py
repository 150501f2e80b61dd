"""`send_shipped_emails`: one e-mail for each shipped order, by double-checked locking."""

from tasks.commands.pattern import PatternCommand


class Command(PatternCommand):
    pattern = "shipped_emails"
