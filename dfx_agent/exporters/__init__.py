"""Snapshot to somewhere else."""
