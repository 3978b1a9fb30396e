"""/metrics: a Snapshot as metric families."""
