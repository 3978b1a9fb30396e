"""Reads a protobuf message from the bytes of a request, field by field, within bounds.

protobuf's parser makes an object of each message, and an empty message takes two bytes: 65 KB of
gzip became 3.8 GB. Here bytes are inflated as they are read, and fields are counted before anything
is made of them.
https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from dfx_agent.base.text import plain

MAX_FIELDS = 1 << 16

_GZIP = 31  # zlib's window with a header of gzip
_PACKED_AT_ONCE, _PLAIN_AT_ONCE = 1 << 14, 1 << 18
_MAX_VARINT_BYTES = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class DamagedError(ValueError):
    """A request that is no protobuf message."""


class TooLargeError(ValueError):
    """A request with more bytes or fields than allowed."""


class BodyReader:
    """One request. Raises: ValueError in one line where it cannot be read.

    DamagedError where it is no message, TooLargeError beyond a bound.

    ``max_bytes`` is of the inflated request, ``MAX_FIELDS`` of all its messages that are read.
    """

    def __init__(self, body: bytes, encoding: str, max_bytes: int) -> None:
        self._chunks = _inflated(body, encoding)
        self._chunk, self._at = b"", 0
        self._num_read = 0  # bytes, before the present chunk
        self._max_bytes = max_bytes
        self._num_fields = 0

    def fields(self, size: int | None = None) -> Iterator[tuple[int, int, bool]]:
        """The fields of a message of ``size`` bytes, None: of the request.

        Each is (number, size, True) where it holds bytes, text or a message: the caller may read
        it, and what is left of it is skipped. A whole number is (number, value, False).
        """
        end = None if size is None else self._position + size
        while self._position < end if end is not None else self._has_more():
            self._num_fields += 1
            if self._num_fields > MAX_FIELDS:
                raise TooLargeError(f"more than {MAX_FIELDS:,} fields")
            tag = self._varint()
            kind, number = tag & 7, tag >> 3
            if number == 0:
                raise DamagedError("a field without a number")
            if kind == _BYTES:
                length = self._varint()
                field_end = self._position + length
                if end is not None and field_end > end:
                    raise DamagedError("a field is longer than its message")
                yield number, length, True
                self._skip(field_end - self._position)
            elif kind == _VARINT:
                yield number, self._varint(), False
            elif kind in {_FIXED64, _FIXED32}:
                self._skip(8 if kind == _FIXED64 else 4)
            else:
                raise DamagedError(f"a field of wire type {kind}")
        if end is not None and self._position != end:
            raise DamagedError("a field is longer than its message")

    def messages(self, number: int, size: int | None = None) -> Iterator[int]:
        """Sizes of the fields ``number`` of a message of ``size`` bytes, None: of the request."""
        for found, length, has_bytes in self.fields(size):
            if found == number and has_bytes:
                yield length

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        parts = []
        while size > 0:
            if not self._has_more():
                raise DamagedError("it is cut off")
            part = self._chunk[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def _position(self) -> int:
        return self._num_read + self._at

    def _skip(self, size: int) -> None:
        while size > 0:
            if not self._has_more():
                raise DamagedError("it is cut off")
            step = min(size, len(self._chunk) - self._at)
            self._at += step
            size -= step

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            if self._at >= len(self._chunk) and not self._has_more():
                raise DamagedError("it is cut off")
            byte = self._chunk[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise DamagedError("a number of more than 64 bits")

    def _has_more(self) -> bool:
        """Whether a byte is left; inflates more bytes if needed."""
        while self._at >= len(self._chunk):
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._num_read, self._chunk, self._at = self._position, chunk, 0
            if self._num_read + len(chunk) > self._max_bytes:
                raise TooLargeError(f"more than {self._max_bytes >> 20} MiB when it is unpacked")
        return True


def _inflated(body: bytes, encoding: str) -> Iterator[bytes]:
    if encoding in {"", "identity"}:
        return iter((body,))
    if encoding != "gzip":
        raise ValueError(f"Content-Encoding {plain(encoding)[:40]}: only gzip is read")
    return _gunzipped(body)


def _gunzipped(body: bytes) -> Iterator[bytes]:
    unpacking = zlib.decompressobj(_GZIP)
    packed = memoryview(body)
    try:
        for begin in range(0, len(body), _PACKED_AT_ONCE):
            part: bytes | memoryview = packed[begin : begin + _PACKED_AT_ONCE]
            while part and not unpacking.eof:
                yield unpacking.decompress(part, _PLAIN_AT_ONCE)
                part = unpacking.unconsumed_tail
    except zlib.error:
        raise ValueError("not gzip, though it says so") from None
    if not unpacking.eof:
        raise ValueError("gzip without its end")
