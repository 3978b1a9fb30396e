"""/metrics: what a Snapshot says as metric families."""
