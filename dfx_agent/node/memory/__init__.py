"""Host and device memory of one process."""
