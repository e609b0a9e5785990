"""What operators see: the table of all metrics and the one format of log lines. A leaf: it knows nobody."""
