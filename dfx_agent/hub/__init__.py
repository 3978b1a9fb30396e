"""Transfers facts between machines: a node rounds and sends them, the hub receives and merges them.

``access`` checks tokens of nodes and of people, ``otlp`` reads requests.

This package judges nothing: nodes and hubs pass their facts to ``job``.
"""
