"""Sessions and locks of the database: who waits for whom, what each holds, and past waits."""
