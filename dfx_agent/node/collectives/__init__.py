"""Collectives of several ranks, matched with each other."""
