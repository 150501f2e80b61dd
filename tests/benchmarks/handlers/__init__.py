"""An app of tasks for workers under measure: ROWLOCK_APPS names it."""
