"""Segments in, Snapshot out."""
