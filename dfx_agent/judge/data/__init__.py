"""Whether a batch is what it was a stage before."""
