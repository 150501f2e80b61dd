"""The pattern lab: runs locking patterns on this database, in a schema of their own, and measures them."""
