"""Finds symbols of an ELF image in a process's memory, without reading a file.

The file may therefore be deleted, replaced, or in another mount namespace. Program headers,
PT_DYNAMIC and DT_GNU_HASH are loaded in every dynamic program; section headers and debug symbols
are not needed. Source: System V ABI, gABI 4.1, chapter 5.
"""

from __future__ import annotations

import struct

from dfx_agent.attach.procfs import TargetMemory

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 5, 6, 0x6FFFFEF5
_STT_GNU_IFUNC = 10
_ELFCLASS64 = 2
_MACHINES = {
    3: "i386",
    21: "ppc64",
    22: "s390x",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv",
}


class ElfError(Exception):
    """The bytes are not a dynamic 64-bit ELF image; the message says what they are."""


class Image:
    """The image whose first mapping is at ``base``. Raises ElfError if it has no usable symbols."""

    def __init__(self, memory: TargetMemory, base: int) -> None:
        self._memory, self._base = memory, base
        header = memory.read(base, 64)
        self.machine = machine_of(header)
        if header[4] != _ELFCLASS64:
            raise ElfError("32-bit")
        dynamic = self._dynamic(*struct.unpack_from("<Q14xHH", header, 32))
        try:
            self._symbols, self._strings = dynamic[_DT_SYMTAB], dynamic[_DT_STRTAB]
            self._hash = dynamic[_DT_GNU_HASH]
        except KeyError:
            raise ElfError("no symbol table with a GNU hash") from None

    def _dynamic(self, offset: int, entry_size: int, num_entries: int) -> dict[int, int]:
        """Tag -> value. Also sets ``_bias``, which is added to addresses in the file."""
        segments: dict[int, tuple[int, int]] = {}
        table = self._memory.read(self._base + offset, entry_size * num_entries)
        for begin in range(0, len(table), entry_size):
            kind, _, _, address, _, _, size, _ = struct.unpack_from("<IIQQQQQQ", table, begin)
            segments.setdefault(kind, (address, size))
        if _PT_DYNAMIC not in segments or _PT_LOAD not in segments:
            raise ElfError("statically linked")
        self._bias = self._base - (segments[_PT_LOAD][0] & ~0xFFF)
        address, size = segments[_PT_DYNAMIC]
        values: dict[int, int] = {}
        for tag, value in struct.iter_unpack("<qQ", self._memory.read(self._bias + address, size)):
            if tag == 0:
                break
            # glibc writes the biased address back into the table, musl leaves the file's value
            values.setdefault(tag, value if value >= self._base else value + self._bias)
        return values

    def symbol(self, name: str) -> int | None:
        """Address of a function or variable that the image defines; None if it does not."""
        memory, wanted = self._memory, _gnu_hash(name)
        num_buckets, first, num_bloom, _ = struct.unpack("<4I", memory.read(self._hash, 16))
        buckets = self._hash + 16 + num_bloom * 8
        chains = buckets + num_buckets * 4
        index = self._uint32(buckets + 4 * (wanted % num_buckets))
        if index < first:
            return None
        while True:
            value = self._uint32(chains + 4 * (index - first))
            if value | 1 == wanted | 1 and (address := self._defined(index, name)) is not None:
                return address
            if value & 1:
                return None
            index += 1

    def _defined(self, index: int, name: str) -> int | None:
        entry = self._memory.read(self._symbols + 24 * index, 24)
        at, info, _, section, value, _ = struct.unpack("<IBBHQQ", entry)
        is_ours = section and info & 0xF != _STT_GNU_IFUNC
        if is_ours and self._memory.text(self._strings + at) == name.encode():
            return int(self._bias + value)
        return None

    def _uint32(self, address: int) -> int:
        return int.from_bytes(self._memory.read(address, 4), "little")


def machine_of(header: bytes) -> str:
    """Processor of an ELF header of at least 20 bytes. Raises ElfError for other bytes."""
    if header[:4] != b"\x7fELF":
        raise ElfError("not ELF")
    number = int.from_bytes(header[18:20], "little")
    return _MACHINES.get(number, f"machine {number}")


def _gnu_hash(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
