"""What hooks into torch, and is loaded only where the job has imported it."""
