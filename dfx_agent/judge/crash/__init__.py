"""Whether a process has ended unexpectedly."""
