"""Matching of collectives across the ranks of one node."""
