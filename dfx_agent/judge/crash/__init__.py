"""Whether a process is gone that should not be."""
