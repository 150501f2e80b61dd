"""The queue that is a table, and the locking primitives around it: the ground floor of Rowlock."""
