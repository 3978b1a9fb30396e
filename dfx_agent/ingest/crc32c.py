"""CRC-32C (Castagnoli) as TFRecords carry it: masked, for data that may hold CRCs itself.

After tensorflow/core/lib/hash/crc32c.h and RFC 3720, appendix B.4; the standard library has only
CRC-32 with another polynomial.
"""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78  # reflected
_MASK_DELTA = 0xA282EAD8


def _entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ _POLYNOMIAL * (value & 1)
    return value


_TABLE = tuple(map(_entry, range(256)))


def crc32c(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
