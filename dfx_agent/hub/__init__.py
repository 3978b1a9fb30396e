"""Transfers facts between machines: a node rounds and sends them, the hub merges them.

This package judges nothing: nodes and hubs pass their facts to ``job``.
"""
