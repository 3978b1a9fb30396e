"""Numbers that jobs report, over steps: kept in bounds, and as rows of a Snapshot."""
