"""Segments of guests and the files next to them."""
