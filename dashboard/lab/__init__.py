"""The pattern lab: locking patterns run on this very database, in a schema of their own, and measured from outside."""
