"""Experiment trackers: one file each; every file in this folder is loaded."""
