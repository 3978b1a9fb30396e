"""The machine itself: memory as its kernel counts it, ``/proc/meminfo``."""

from __future__ import annotations

from dfx_agent.host.memory import available_bytes, total_bytes
from dfx_agent.snapshot import DeviceRow


class Backend:
    """Always there, and never closed."""

    def probe(self) -> bool:
        """Whether the kernel says how much there is."""
        return total_bytes() is not None

    def read(self) -> tuple[DeviceRow, ...]:
        """One device, "host"."""
        return (DeviceRow("host", total_bytes(), available_bytes()),)

    def close(self) -> None:
        """There is nothing to let go."""
