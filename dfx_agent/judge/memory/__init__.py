"""Whether a role runs out of memory, of its host or of a device."""
