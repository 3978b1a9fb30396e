"""What outlives an agent: files that the next one goes on from, and evidence for people."""
