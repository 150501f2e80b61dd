"""Times to the second and with their zone: they are compared with logs."""

DATETIME_FORMAT = "Y-m-d H:i:s T"
