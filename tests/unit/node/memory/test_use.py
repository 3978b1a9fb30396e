"""What glibc keeps, held against what is resident: by real and by made up mappings."""

from __future__ import annotations

import ctypes
import mmap
import os

import pytest

from dfx_agent.node import memory
from dfx_agent.node.host.memory import _resident_bytes, glibc_arena_bytes, parse_arenas
from dfx_agent.node.memory import ProcessHeap, heap_of

MIB, GIB, S = 2**20, 2**30, 10**9
MAPS = """\
55d0c0000000-55d0c1000000 r-xp 00000000 08:01 123 /usr/bin/python3
55d0c2000000-55d0c9000000 rw-p 00000000 00:00 0                          [heap]
7f0004000000-7f0005000000 rw-p 00000000 00:00 0
7f0005000000-7f0008000000 ---p 00000000 00:00 0
7f0008100000-7f0009000000 rw-p 00000000 00:00 0
7f000c000000-7f000d000000 rw-p 00000000 08:01 99 /dev/shm/a file (deleted)
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""


def told(free: float, used: float = GIB, num_pieces: float = 100.0) -> dict[str, float]:
    return {
        "heap/used_bytes": used,
        "heap/mapped_bytes": 8.0 * MIB,
        "heap/free_bytes": free,
        "heap/num_free_pieces": num_pieces,
    }


def test_arenas_are_the_heap_and_what_begins_at_64_mib():
    heap_of_it = 0x55D0C2000000, 0x55D0C9000000
    other = 0x7F0004000000, 0x7F0005000000
    assert parse_arenas(MAPS.splitlines(keepends=True)) == [heap_of_it, other]


@pytest.mark.parametrize("num_mib", [1, 5, 2100])
def test_what_is_resident_of_an_area_is_counted_page_by_page(num_mib):
    """One page of each 256 KiB was touched; of more than 1 GiB only some pieces are looked at."""
    with mmap.mmap(-1, num_mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.madvise(mmap.MADV_NOHUGEPAGE)
        touched = range(0, len(area), 256 * 1024)
        for at in touched:
            area[at] = 1
        byte = ctypes.c_char.from_buffer(area)
        begin = ctypes.addressof(byte)
        del byte
        fd = os.open("/proc/self/pagemap", os.O_RDONLY)
        found = _resident_bytes(fd, [(begin, begin + len(area))])
        os.close(fd)
    assert found == pytest.approx(len(touched) * mmap.PAGESIZE, rel=0.01)


def test_arenas_of_a_real_process_and_of_none():
    assert glibc_arena_bytes(os.getpid()) > 0
    assert glibc_arena_bytes(2**22 + 1) is None


def test_pages_that_were_returned_are_not_counted():
    stored = heap_of(GIB, 0.0, 3 * GIB, 100.0, resident=1.5 * GIB)
    assert stored.retained_bytes == 0.5 * GIB
    assert stored.trimmable_bytes == pytest.approx(0.5 * GIB, rel=0.01)
    trimmed = heap_of(GIB, 0.0, 3 * GIB, 100.0, resident=GIB - MIB)
    assert (trimmed.retained_bytes, trimmed.trimmable_bytes) == (0.0, 0.0)
    assert heap_of(GIB, MIB, 3 * GIB, 1.0, None).retained_bytes is None


def test_pieces_of_less_than_a_page_cannot_be_given_back():
    """Measured: of 500 MiB in pieces of 1,000 bytes malloc_trim gave back 8."""
    stored = heap_of(GIB, 0.0, 500 * MIB, 500_000.0, resident=2 * GIB)
    assert (stored.retained_bytes, stored.trimmable_bytes) == (500 * MIB, 0.0)


def test_mappings_are_read_seldom_and_only_where_much_is_free(monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "glibc_arena_bytes", lambda pid: asked.append(pid) or 4 * GIB)
    known = ProcessHeap()
    known.look(1 * S, 7, {})
    assert known.now is None
    known.look(2 * S, 7, told(10 * MIB))
    assert (known.now.retained_bytes, known.now.used_bytes, asked) == (10 * MIB, GIB + 8 * MIB, [])
    known.look(3 * S, 7, told(500 * MIB))
    assert known.now.retained_bytes == 10 * MIB, "too soon"
    known.look(40 * S, 7, told(500 * MIB))
    assert (known.now.retained_bytes, asked) == (500 * MIB, [7])
    known.look(80 * S, 7, told(500 * MIB))
    assert asked == [7], "nothing new was said"
    known.look(120 * S, 7, {**told(600 * MIB), "heap/given_up": 0.2})
    assert known.now is None
