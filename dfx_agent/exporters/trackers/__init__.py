"""Experiment trackers: one file each, found by being here."""
