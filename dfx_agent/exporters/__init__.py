"""Exporters: they convert a Snapshot to other formats and send it to other systems."""
