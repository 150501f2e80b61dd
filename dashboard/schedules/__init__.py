"""The page of schedules: their table, the time line, the editor, and what buttons do."""

SEE = "tasks.view_schedule"
LIST = "admin:ops_schedule"
