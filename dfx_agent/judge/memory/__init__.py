"""Whether a role runs out of host or device memory."""
