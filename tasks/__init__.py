"""The task queue in PostgreSQL and its locking primitives: the lowest layer of Rowlock."""
