"""History of runs on disk: one SQLite file per run, written by the agent and read by verbs."""
