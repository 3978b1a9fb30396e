"""What a process uses of its host and its devices."""
