"""Lines of a text file however it was stored: compressed, cut, in UTF-16, without line ends."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import lzma
import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, cast

from dfx_agent.node.logs.run import Notes, UnreadableLogError

# 120,000 keys of a line take 5 MiB; nobody's report is longer
MAX_LINE_CHARS = 8 << 20

_ZSTD = b"\x28\xb5\x2f\xfd"
# what reading a compressed file that is cut off or damaged raises
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
# UTF-32 before UTF-16: its mark begins with that of UTF-16
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


# the encoding of a file without a mark is detected from this many bytes
_NUM_ENCODING_BYTES = 256


def read_lines(path: Path, notes: Notes) -> Iterator[str]:
    """Lines with their ends; of a stream that is cut or damaged those before the damage.

    OSError when the file cannot be opened. Bytes that do not decode are replaced. A line longer
    than 8 Mi characters is left out.
    """
    number = 0
    with open_text(path) as text:
        try:
            while line := text.readline(MAX_LINE_CHARS):
                number += 1
                if len(line) < MAX_LINE_CHARS or line.endswith("\n"):
                    yield line
                else:
                    notes.left_out(f"is longer than {MAX_LINE_CHARS:,}: left out", f"line {number}")
                    _skip_line(text)
        except (*DAMAGE, UnicodeError):
            notes.cut("is cut off or damaged: read up to there", f"the file behind line {number}")


def open_text(path: Path) -> TextIOWrapper:
    """Text of a file, decompressed by what it begins with; UnreadableLogError for unknown zstd."""
    data = open_bytes(path)
    with suppress(*DAMAGE):
        return TextIOWrapper(data, _encoding(path), errors="replace")
    data.close()
    raise UnreadableLogError(f"cannot read {path}: its compressed data is cut off or damaged")


def open_bytes(path: Path) -> IO[bytes]:
    """Bytes of a file, decompressed by what it begins with."""
    with path.open("rb") as raw:
        begin = raw.read(8)
    if begin.startswith(_ZSTD):
        return _open_zstd(path)
    opener = next((o for mark, o in _OPENERS.items() if begin.startswith(mark)), open)
    return cast("IO[bytes]", opener(path, "rb"))


def _open_zstd(path: Path) -> IO[bytes]:
    """Decompress with the standard library (Python 3.14) or with the package zstandard."""
    for name in ("compression.zstd", "zstandard"):
        with suppress(ImportError):
            return cast("IO[bytes]", importlib.import_module(name).open(path, "rb"))
    raise UnreadableLogError(
        f"{path} is compressed with zstd: pip install zstandard, or unpack it (zstd -d)"
    )


def _encoding(path: Path) -> str:
    with open_bytes(path) as data:
        begin = data.read(_NUM_ENCODING_BYTES)
    encoding = next((name for mark, name in _MARKS if begin.startswith(mark)), None)
    return encoding or _unmarked(begin)


def _unmarked(begin: bytes) -> str:
    """Encoding of a file without a mark. In a part of a UTF-16 file every other byte is 0."""
    halves = begin[::2], begin[1::2]
    num_zeros = [half.count(0) for half in halves]
    if len(halves[1]) < 4 or min(num_zeros) > 0 or max(num_zeros) * 2 < len(halves[1]):
        return "utf-8"
    return "utf-16-le" if num_zeros[1] else "utf-16-be"


def _skip_line(text: TextIOWrapper) -> None:
    while part := text.readline(MAX_LINE_CHARS):
        if part.endswith("\n"):
            return
