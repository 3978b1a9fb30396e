"""Readers of /proc and of other kernel files about processes."""
