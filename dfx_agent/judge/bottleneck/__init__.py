"""Where the time of a step goes, and which component limits a pipeline."""
