"""Queries the devices of this machine once: the devices, and the reason for each missing kind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from dfx_agent.node.devices.registry import DeviceReader, find_readers
from dfx_agent.snapshot import DeviceRow

_PAUSE_SECONDS = 0.02


class KindOfDevice(NamedTuple):
    """``rows`` are empty where there are none; ``problem`` says why they cannot be read."""

    name: str
    rows: tuple[DeviceRow, ...]
    problem: str


def check_devices(
    patience_seconds: float, readers: Sequence[DeviceReader] | None = None
) -> tuple[KindOfDevice, ...]:
    """The devices of each kind, by name. Waits for two results per reader."""
    readers = find_readers() if readers is None else readers
    for reader in readers:
        reader.start()
    deadline = time.monotonic() + patience_seconds
    while not all(_has_looked(reader) for reader in readers) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    kinds = tuple(_kind(reader, patience_seconds) for reader in readers)
    for reader in readers:
        reader.stop()
    return kinds


def _has_looked(reader: DeviceReader) -> bool:
    return reader.is_over or reader.has_failed or reader.num_results >= 2


def _kind(reader: DeviceReader, patience_seconds: float) -> KindOfDevice:
    if not _has_looked(reader) and not reader.num_results:
        text = f"no answer for {patience_seconds:.0f} s: its driver hangs; see dmesg"
        return KindOfDevice(reader.name, (), text)
    try:
        return KindOfDevice(reader.name, reader.latest(), "")
    except Exception as error:  # noqa: BLE001 (whatever a library raises is the answer)
        return KindOfDevice(reader.name, (), str(error))
