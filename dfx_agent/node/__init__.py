"""What this machine knows of the processes that it follows: everything that is read, by process."""
