"""A span that a job has sent, independent of any library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Attributes = Mapping[str, str | int]

# attributes that assign a span to a step of a rank; other attributes are not stored
STEPS = ("dfx.step", "global_step", "step")
RANKS, ROLES, RUNS = ("dfx.rank", "rank"), ("dfx.role", "role"), ("dfx.run", "service.namespace")
SERVICE, INSTANCE, HOST = "service.name", "service.instance.id", "host.name"
READ_ATTRIBUTES = frozenset({*STEPS, *RANKS, *ROLES, *RUNS, SERVICE, INSTANCE, HOST})


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span that has ended. Times are Unix nanoseconds of the sender's clock.

    ``parent``: b"" for the root of a trace. ``resource``: attributes of its process.
    """

    name: str
    trace: bytes
    span: bytes
    parent: bytes
    begin_ns: int
    end_ns: int
    attributes: Attributes
    resource: Attributes
