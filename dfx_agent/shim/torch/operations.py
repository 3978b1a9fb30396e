"""The methods of ``ProcessGroup``, and how many bytes a call of one moves."""

from __future__ import annotations

from typing import Any

# method of ProcessGroup -> (operation in torch.distributed, position of the argument with the
# data). If that list is empty, the other of the first two arguments has the data. Method names
# changed over versions.
OPERATIONS = {
    "allreduce": ("all_reduce", 1),
    "allreduce_coalesced": ("all_reduce_coalesced", 1),
    "broadcast": ("broadcast", 1),
    "reduce": ("reduce", 1),
    "allgather": ("all_gather", 1),
    "_allgather_base": ("all_gather_into_tensor", 1),
    "all_gather_single": ("all_gather_into_tensor", 1),
    "allgather_coalesced": ("all_gather_coalesced", 1),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "gather": ("gather", 1),
    "gather_single": ("gather", 1),
    "gather_into_tensor": ("gather", 1),
    "scatter": ("scatter", 2),
    "reduce_scatter": ("reduce_scatter", 2),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 2),
    "reduce_scatter_single": ("reduce_scatter_tensor", 2),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 2),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", 2),
    "alltoall": ("all_to_all", 2),
    "alltoall_base": ("all_to_all_single", 2),
    "all_to_all_single": ("all_to_all_single", 2),
    "barrier": ("barrier", 1),
    "monitored_barrier": ("monitored_barrier", 1),
    "send": ("send", 1),
    "recv": ("recv", 1),
    "recv_anysource": ("recv", 1),
    "_end_coalescing": ("coalesced", 1),
}
# gloo numbers these like collectives, but differently on each rank
APART = frozenset({"send", "recv", "monitored_barrier"})
UNNUMBERED = APART | {"coalesced"}
# methods whose argument after the data is the peer's rank in the group
WITH_PEER = frozenset({"send", "recv"})
_MAX_TENSORS = 32


def measure(args: tuple[Any, ...], at: int) -> tuple[float, bool]:
    """Return (bytes that this rank sends or receives, whichever is more; are they on the host).

    A list of more than 32 tensors is extrapolated from the first 32. An argument without bytes
    counts as 0 bytes in host memory.
    """
    payload = args[at] if len(args) > at else None
    if isinstance(payload, (list, tuple)) and not payload and len(args) > 2:
        payload = args[3 - at]  # gather and scatter: only the root has all data
    while isinstance(payload, (list, tuple)) and len(payload) == 1:
        payload = payload[0]
    try:
        return payload.nbytes, payload.is_cpu  # type: ignore[union-attr]
    except AttributeError:
        if not isinstance(payload, (list, tuple)) or not payload:
            return 0.0, True
    parts = [measure((part,), 0) for part in payload[:_MAX_TENSORS]]
    return sum(size for size, _ in parts) * len(payload) / len(parts), parts[0][1]
