"""Whether ranks wait for a rank that does not arrive."""
