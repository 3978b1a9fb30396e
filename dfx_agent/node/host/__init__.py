"""What the kernel says of a process."""
