"""How a job on Ray ends: what Ray does to its workers is no crash."""
