"""Contract 1: the bytes between a training process and the agent. Standard library only."""

from dfx_agent.wire.segment import (
    Identity,
    SegmentError,
    SegmentReader,
    SegmentWriter,
    default_directory,
    prepare_directory,
)

__all__ = [
    "Identity",
    "SegmentError",
    "SegmentReader",
    "SegmentWriter",
    "default_directory",
    "prepare_directory",
]
