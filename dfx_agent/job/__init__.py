"""Judges a job on one or more nodes: merges the facts of its nodes and runs all judges on them.

Nodes have no common clock. Timestamps of a node are moved to the clock of the local host by their
age; the clocks of two nodes are never compared.
"""
