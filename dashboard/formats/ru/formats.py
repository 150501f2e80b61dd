"""Times with seconds and zone, so that they can be compared with logs."""

DATETIME_FORMAT = "Y-m-d H:i:s T"
