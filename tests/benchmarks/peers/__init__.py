"""Other queues on PostgreSQL, measured beside Rowlock: one driver each, run with the interpreter it needs.

All drivers know the same verbs (`subject.py` says which) and tell what happens over one pipe (`wire.py`).
"""
