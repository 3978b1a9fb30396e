"""A span as a job tells it; nothing of any library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Attributes = Mapping[str, str | int]

# what a span is joined to a step of a rank by; other attributes are not stored
STEPS = ("dfx.step", "global_step", "step")
RANKS, ROLES, RUNS = ("dfx.rank", "rank"), ("dfx.role", "role"), ("dfx.run", "service.namespace")
SERVICE, INSTANCE, HOST = "service.name", "service.instance.id", "host.name"
READ_ATTRIBUTES = frozenset({*STEPS, *RANKS, *ROLES, *RUNS, SERVICE, INSTANCE, HOST})


@dataclass(frozen=True, slots=True)
class ToldSpan:
    """One span that has ended. Times are Unix nanoseconds of who sends it.

    ``parent`` is b"" of the root of a trace. ``resource``: attributes of its process.
    """

    name: str
    trace: bytes
    span: bytes
    parent: bytes
    begin_ns: int
    end_ns: int
    attributes: Attributes
    resource: Attributes
