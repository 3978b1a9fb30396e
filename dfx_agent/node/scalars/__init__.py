"""Numbers that jobs report, by step."""
