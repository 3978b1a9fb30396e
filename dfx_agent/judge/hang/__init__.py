"""Whether ranks wait for one that does not come."""
