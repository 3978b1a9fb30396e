"""What this machine and a job on it allow: one file for each concept, each of findings."""
