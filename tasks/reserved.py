"""The condition by which claims pass over what is reserved (see `tasks.reservation`)."""

# For the WHERE of a claim that walks the line. What the dead have reserved must not stand in everybody's way until
# somebody has settled it; what the living have is locked. The first question is asked once for all rows.
NOT_RESERVED = """(
    (SELECT NOT EXISTS (SELECT FROM tasks_reservation WHERE members <> '')) OR NOT EXISTS (
        SELECT FROM tasks_reservation AS noted WHERE CASE
            WHEN task.id >= noted.first_id AND task.id < noted.first_id + 8 * length(noted.members)
            THEN get_bit(noted.members, task.id - noted.first_id) = 1 ELSE false END))"""
