"""Segments with arbitrary damage: the reader reports and skips, quickly, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfx_agent.wire import Identity, SegmentError, SegmentReader, SegmentWriter, layout

FEW = settings(
    max_examples=150, deadline=3000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SIZE = layout.total_bytes(64)
REGIONS = [
    (0, layout.PREAMBLE.size),
    (layout.IDENTITY_OFFSET, layout.IDENTITY.size),
    (layout.STATE_OFFSET, layout.LIVE.size),
    (layout.CLOCK_OFFSET, layout.CLOCK.size * layout.NUM_CLOCKS),
    (layout.INFLIGHT_OFFSET, 64 * 64),
    (layout.NAMES_OFFSET, 400),
    (layout.RING_OFFSET, 64 * 64),
]


@st.composite
def damages(draw) -> tuple[int, bytes]:
    at, size = draw(st.sampled_from(REGIONS))
    start = draw(st.integers(0, size - 1))
    noise = st.one_of(
        st.binary(min_size=1, max_size=24),
        st.sampled_from([b"\0" * 8, b"\xff" * 8, b"\xff", b"\0" * 200, b"\xff" * 200]),
    )
    return at + start, draw(noise)[: size - start]


def make_segment(folder: Path) -> Path:
    segment = SegmentWriter(str(folder), Identity(run="r", role="trainer", rank=0), num_records=64)
    ids = [segment.add_name(f"name-{n}") for n in range(20)]
    for n in range(40):
        segment.emit(n, n + 1, 0.5, n, n + 1, n, 1, 1, ids[n % 20])
    for n in range(5):
        segment.inflight.enter(n + 1, 3, n + 1, n, 1, 1, ids[n])
    segment.close()
    return Path(segment.path)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    return make_segment(tmp_path_factory.mktemp("segments") / "s")


def write_at(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@contextmanager
def followed(path: Path) -> Iterator[SegmentReader]:
    with closing(SegmentReader(str(path))) as reader:
        yield reader


def use_all(reader: SegmentReader) -> None:
    records = [*reader.poll(), *reader.inflight()]
    assert len(records) <= 64 + 256 + 64
    for record in records:
        reader.name(record[9])
    for name_id in (0, 1, 19, 20, 21, 0xFFFF):
        name = reader.name(name_id)
        assert name is None or len(name) <= layout.MAX_NAME_BYTES
    reader.identity()
    assert len(reader.clock_pairs()) <= layout.NUM_CLOCKS
    assert len(reader.live_words()) == 5


@FEW
@given(st.lists(damages(), min_size=1, max_size=4))
def test_a_damaged_file_is_refused_or_read(tmp_path, template, damage):
    path = tmp_path / "a.seg"
    path.write_bytes(template.read_bytes())
    for at, data in damage:
        write_at(path, at, data)
    with suppress(SegmentError), followed(path) as reader:
        for _ in range(3):
            use_all(reader)


@FEW
@given(st.lists(damages(), min_size=1, max_size=6))
def test_damage_while_it_is_followed(tmp_path, template, damage):
    path = tmp_path / "a.seg"
    path.write_bytes(template.read_bytes())
    with followed(path) as reader:
        use_all(reader)
        for at, data in damage:
            write_at(path, at, data)
            use_all(reader)


@FEW
@given(st.integers(0, SIZE), st.booleans())
def test_cut_at_any_length_while_it_is_followed(tmp_path, template, size, read_first):
    path = tmp_path / "a.seg"
    path.write_bytes(template.read_bytes())
    with followed(path) as reader:
        if read_first:
            use_all(reader)
        os.truncate(path, size)
        use_all(reader)
        os.truncate(path, SIZE)
        use_all(reader)


@FEW
@given(st.integers(0, SIZE - 1))
def test_cut_at_any_length_before_is_refused(tmp_path, template, size):
    path = tmp_path / "a.seg"
    path.write_bytes(template.read_bytes()[:size])
    with pytest.raises(SegmentError):
        SegmentReader(str(path))


@FEW
@given(st.binary(max_size=5000), st.booleans())
def test_bytes_from_nowhere_are_refused(tmp_path, noise, with_magic):
    path = tmp_path / "a.seg"
    path.write_bytes((layout.MAGIC if with_magic else b"") + noise)
    with pytest.raises(SegmentError):
        SegmentReader(str(path))


def test_a_names_word_that_goes_back_is_no_error(tmp_path, template):
    """Found by reading: a negative length to pread is an OSError."""
    path = tmp_path / "a.seg"
    path.write_bytes(template.read_bytes())
    with followed(path) as reader:
        assert reader.name(20) == "name-19"
        write_at(path, layout.NAMES_USED_OFFSET, bytes(8))
        assert reader.name(21) is None
        assert reader.name(20) == "name-19"


def test_the_reader_stays_inside_the_file_that_it_checked(tmp_path, template):
    path = tmp_path / "a.seg"
    path.write_bytes(template.read_bytes())
    reached = []
    with followed(path) as reader:
        read = reader.read

        def spy(at: int, size: int) -> bytes:
            reached.append((at, at + size))
            return read(at, size)

        reader.read = reader.ring._read = spy
        write_at(path, layout.NAMES_USED_OFFSET, b"\xff" * 8)
        write_at(path, layout.RING_OFFSET, b"\xff" * 512)
        for _ in range(3):
            use_all(reader)
    assert min(at for at, _ in reached) >= 0
    assert max(end for _, end in reached) <= SIZE


def test_300_damaged_files_are_read_in_seconds(tmp_path, template):
    path = tmp_path / "a.seg"
    begin = time.monotonic()
    for n in range(300):
        damaged = bytearray(template.read_bytes())
        damaged[(n * 7919) % SIZE] ^= 0xFF
        damaged[(n * 104729) % layout.HEADER_BYTES] ^= 1 << (n % 8)
        path.write_bytes(damaged)
        with suppress(SegmentError), followed(path) as reader:
            use_all(reader)
    assert time.monotonic() - begin < 10
