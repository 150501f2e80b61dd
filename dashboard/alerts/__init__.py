"""Send "Needs attention" to people who look at no page: incidents, channels, messages and their delivery."""

QUEUE = "rowlock-alerts"
