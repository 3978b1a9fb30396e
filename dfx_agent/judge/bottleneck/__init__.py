"""What a pipeline waits for: which side is late, because of which component, and by how much."""
