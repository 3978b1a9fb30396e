"""Whether one rank is slower than the others, and why."""
