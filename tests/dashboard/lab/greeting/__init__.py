"""An adopter's app: patterns of its own, which the processes of a run find through ROWLOCK_APPS."""
