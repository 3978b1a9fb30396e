"""Segment files: names, identity, clocks, who may use a folder, what is refused and why."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfx_agent.wire import Identity, SegmentError, SegmentReader, SegmentWriter, layout
from dfx_agent.wire.segment import (
    default_directory,
    own_directory,
    prepare_directory,
    start_ticks,
)

ROOT = Path(__file__).resolve().parents[3]
FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
IS_ROOT = os.getuid() == 0
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=24)


@pytest.fixture
def writer(dfx_dir):
    segment = SegmentWriter(str(dfx_dir), Identity(run="r"), num_records=64)
    yield segment
    segment.close()


@pytest.fixture
def reader(writer):
    segment = SegmentReader(writer.path)
    yield segment
    segment.close()


def patch(path: str, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def refusal(path: str | Path) -> SegmentError:
    with pytest.raises(SegmentError) as caught:
        SegmentReader(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return caught.value


@FEW
@given(
    st.builds(
        Identity,
        run=TEXT,
        role=TEXT.filter(lambda t: len(t.encode()) <= 32),
        framework=TEXT.filter(lambda t: len(t.encode()) <= 32),
        host=TEXT.filter(lambda t: len(t.encode()) <= 64),
        rank=INT32,
        local_rank=INT32,
        world_size=INT32,
        node_rank=INT32,
        attempt=st.integers(0, 2**32 - 1).filter(lambda n: n < 2**31),
    )
)
def test_any_identity_comes_back(writer, reader, identity):
    writer.write_identity(identity)
    assert reader.identity() == identity


def test_a_half_written_identity_is_not_taken(writer, reader):
    writer.write_identity(Identity(run="one"))
    patch(writer.path, layout.IDENTITY_OFFSET, layout.WORD.pack(77))
    assert reader.identity() is None


@FEW
@given(st.lists(st.text(max_size=300), max_size=30))
def test_any_names_get_ids_in_order_and_come_back(dfx_dir, names):
    segment = SegmentWriter(str(dfx_dir), Identity(), num_records=64)
    reader = SegmentReader(segment.path)
    try:
        for number, name in enumerate(names, 1):
            assert segment.add_name(name) == number
            got = reader.name(number)
            cut = name.encode("utf-8", "replace")[: layout.MAX_NAME_BYTES].rstrip(b"\0")
            want = cut.decode("utf-8", "replace")
            assert got == "".join(c if c.isprintable() else "\ufffd" for c in want)
        assert reader.name(len(names) + 1) is None
        assert reader.name(0) is None
    finally:
        reader.close()
        segment.close()
        os.unlink(segment.path)


def test_a_full_name_table_gives_0_and_is_counted(writer, reader):
    ids = [writer.add_name(f"{n:0>199}") for n in range(400)]
    num_fit = layout.NAMES_BYTES // 201
    assert ids == [*range(1, num_fit + 1), *[0] * (400 - num_fit)]
    assert reader.live_words()[2] == 400 - num_fit
    assert reader.name(num_fit) == f"{num_fit - 1:0>199}"


def test_clock_pairs_are_the_first_and_the_last_15(writer, reader):
    (first,) = reader.clock_pairs()
    for _ in range(40):
        writer.add_clock_pair()
    pairs = reader.clock_pairs()
    assert len(pairs) == layout.NUM_CLOCKS
    assert pairs == sorted(pairs)
    assert pairs[0] == first
    assert abs(pairs[-1][0] - time.monotonic_ns()) < 10**9
    assert abs(pairs[-1][1] - time.time_ns()) < 10**9


def test_the_preamble_says_who_writes(writer, reader):
    preamble = reader.preamble
    assert (preamble.pid, preamble.uid) == (os.getpid(), os.getuid())
    assert preamble.start_ticks == start_ticks(os.getpid())
    assert abs(preamble.created_epoch_ns - time.time_ns()) < 10 * 10**9


def test_modes_are_0700_and_0600_under_any_umask(dfx_dir):
    before = os.umask(0)
    try:
        segment = SegmentWriter(str(dfx_dir / "new" / "er"), Identity())
    finally:
        os.umask(before)
    segment.close()
    assert stat.S_IMODE(os.stat(dfx_dir / "new" / "er").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(segment.path).st_mode) == 0o600
    assert os.listdir(dfx_dir / "new" / "er") == [os.path.basename(segment.path)]


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_others_can_write_to_is_refused(dfx_dir, mode):
    folder = dfx_dir / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(SegmentError, match="chmod go-w or set DFX_DIR") as caught:
        SegmentWriter(str(folder), Identity())
    assert caught.value.kind == "folder"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("suffix", ["", "/"])
def test_a_folder_that_is_a_symlink_is_refused(dfx_dir, suffix):
    (dfx_dir / "real").mkdir(mode=0o700)
    (dfx_dir / "link").symlink_to(dfx_dir / "real")
    with pytest.raises(SegmentError) as caught:
        prepare_directory(f"{dfx_dir}/link{suffix}")
    assert caught.value.kind == "folder"


def test_a_file_in_place_of_the_folder_is_refused(dfx_dir):
    (dfx_dir / "file").touch()
    for path in (dfx_dir / "file", dfx_dir / "file" / "below"):
        with pytest.raises(SegmentError, match="set DFX_DIR") as caught:
            prepare_directory(str(path))
        assert caught.value.kind == "folder"


AS_NOBODY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from dfx_agent.wire import Identity, SegmentError, SegmentReader, SegmentWriter
from dfx_agent.wire.segment import prepare_directory
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    {code}
except SegmentError as error:
    print(error.kind, "|", error)
"""


def as_nobody(code: str, *args: str) -> str:
    command = [sys.executable, "-c", AS_NOBODY.format(code=code), str(ROOT), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


needs_root = pytest.mark.skipif(not IS_ROOT, reason="needs root to become another user")


@needs_root
def test_a_folder_of_another_user_is_refused(dfx_dir):
    dfx_dir.chmod(0o755)
    result = as_nobody("prepare_directory(sys.argv[2])", str(dfx_dir))
    assert result.startswith("folder | ")
    assert "set DFX_DIR" in result


@needs_root
def test_a_segment_of_another_user_is_refused_by_name_and_remedy(dfx_dir, writer):
    dfx_dir.chmod(0o755)
    result = as_nobody("SegmentReader(sys.argv[2])", writer.path)
    assert result.startswith("permission | ")
    assert "run the agent as that user or as root" in result


@needs_root
def test_a_folder_without_write_permission_is_refused(dfx_dir):
    folder = dfx_dir / "mine"
    folder.mkdir(mode=0o500)
    os.chown(folder, 65534, 65534)
    dfx_dir.chmod(0o755)
    result = as_nobody("SegmentWriter(sys.argv[2], Identity())", str(folder))
    assert result.startswith("folder | cannot write to")


@needs_root
def test_a_full_shared_memory_is_an_error_at_start_that_leaves_nothing_behind(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(tmp_path)]
    if not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        for _ in range(3):
            with pytest.raises(SegmentError, match="free /dev/shm or set DFX_DIR") as caught:
                SegmentWriter(str(tmp_path), Identity())
            assert caught.value.kind == "full"
            assert os.listdir(tmp_path) == []
        SegmentWriter(str(tmp_path), Identity(), num_records=64).close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_quota_is_an_error_at_start_that_leaves_nothing_behind(dfx_dir):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from dfx_agent.wire import Identity, SegmentError, SegmentWriter\n"
        "try: SegmentWriter(sys.argv[2], Identity())\n"
        "except SegmentError as error: print(error.kind, '|', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(ROOT), str(dfx_dir)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.stdout.startswith("full | no room for 1108 KiB")
    assert done.stdout.count("\n") == 1
    assert list(dfx_dir.iterdir()) == []


@pytest.mark.parametrize("num_records", [0, 1, 32, 63, 65, 100, 1 << 23, -64])
def test_a_strange_ring_size_is_refused(dfx_dir, num_records):
    with pytest.raises(SegmentError, match="power of two"):
        SegmentWriter(str(dfx_dir), Identity(), num_records=num_records)
    assert list(dfx_dir.iterdir()) == []


def test_another_major_version_is_refused_with_the_remedy(writer):
    patch(writer.path, 12, (9).to_bytes(2, sys.byteorder))
    error = refusal(writer.path)
    assert error.kind == "version"
    assert "wire version 9, this agent reads 1: use the dfx-agent version" in str(error)


def test_a_newer_minor_version_is_read(writer):
    patch(writer.path, 14, (7).to_bytes(2, sys.byteorder))
    SegmentReader(writer.path).close()


def test_the_other_byte_order_is_refused(writer):
    patch(
        writer.path,
        8,
        layout.BYTE_ORDER.to_bytes(4, "big" if sys.byteorder == "little" else "little"),
    )
    assert refusal(writer.path).kind == "corrupted"


@pytest.mark.parametrize("num_bytes", [1, 10])
def test_a_file_shorter_than_it_says_is_truncated(writer, num_bytes):
    os.truncate(writer.path, layout.total_bytes(64) - num_bytes)
    assert refusal(writer.path).kind == "truncated"


def test_what_is_no_regular_file_is_refused_at_once(dfx_dir, writer):
    (dfx_dir / "dir.seg").mkdir()
    (dfx_dir / "link.seg").symlink_to(writer.path)
    (dfx_dir / "dangling.seg").symlink_to("nowhere")
    (dfx_dir / "empty.seg").touch()
    os.mkfifo(dfx_dir / "fifo.seg")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(dfx_dir / "socket.seg"))
        begin = time.monotonic()
        kinds = {p.name: refusal(p).kind for p in dfx_dir.iterdir() if str(p) != writer.path}
    assert time.monotonic() - begin < 1
    assert kinds == {
        "dir.seg": "corrupted",
        "link.seg": "unreadable",
        "dangling.seg": "unreadable",
        "empty.seg": "corrupted",
        "fifo.seg": "corrupted",
        "socket.seg": "unreadable",
    }


def test_a_missing_file_is_unreadable(dfx_dir):
    assert refusal(dfx_dir / "gone.seg").kind == "unreadable"


def test_refusals_leak_no_descriptor(dfx_dir):
    (dfx_dir / "empty.seg").touch()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        refusal(dfx_dir / "empty.seg")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "identity", [Identity(run=5), Identity(rank="0"), Identity(rank=2**40)], ids=repr
)
def test_a_segment_that_cannot_be_written_leaves_no_file_behind(dfx_dir, identity):
    with pytest.raises(Exception):  # noqa: B017 (which one is the guest's affair)
        SegmentWriter(str(dfx_dir), identity)
    assert list(dfx_dir.iterdir()) == []


@pytest.mark.parametrize(("field", "value"), [("inflight", 1 << 24), ("names", 1 << 30)])
def test_tables_larger_than_any_guest_makes_are_refused(writer, field, value):
    """A sparse file costs nothing to make and would cost the agent gigabytes to read."""
    fields = list(layout.PREAMBLE.unpack(Path(writer.path).read_bytes()[: layout.PREAMBLE.size]))
    fields[{"inflight": 7, "names": 10}[field]] = value
    fields[12] = 1 << 35
    patch(writer.path, 0, layout.PREAMBLE.pack(*fields))
    os.truncate(writer.path, 1 << 35)
    assert refusal(writer.path).kind == "corrupted"


@pytest.mark.parametrize("num_records", [0, 63, 65, 96])
def test_a_ring_that_is_no_power_of_two_is_refused(writer, num_records):
    fields = list(layout.PREAMBLE.unpack(Path(writer.path).read_bytes()[: layout.PREAMBLE.size]))
    fields[6] = num_records
    fields[12] = 1 << 24
    patch(writer.path, 0, layout.PREAMBLE.pack(*fields))
    os.truncate(writer.path, 1 << 24)
    assert refusal(writer.path).kind == "corrupted"


@pytest.mark.parametrize("word", [0, 3])
def test_a_pair_of_clocks_that_is_being_written_is_left_out(writer, reader, word):
    """Its number stands before and after it."""
    (first,) = reader.clock_pairs()
    writer.add_clock_pair()
    second = reader.clock_pairs()
    assert second[0] == first
    at = layout.CLOCK_OFFSET + 3 * layout.CLOCK.size + 8 * word
    patch(writer.path, at, layout.WORD.pack(9))
    assert reader.clock_pairs() == [first]
    assert len(second) == 2


def test_what_is_open_now_is_what_was_entered(writer):
    assert writer.open_spans() == []
    slot = writer.inflight.enter(5, 3, 7, 0, 1, 1, 2)
    assert [row[5] for row in writer.open_spans()] == [7]
    writer.inflight.leave(slot)
    assert writer.open_spans() == []


def test_what_is_left_of_a_writer_that_is_gone(writer, reader):
    for number in (1, 2, 3):
        writer.emit(number, number, 0.0, 0, 0, 0, 0, 1, 0)
    assert [row[0] for row in reader.poll()] == [1, 2, 3]
    writer.emit(4, 4, 0.0, 0, 0, 0, 0, 1, 0)
    assert [row[0] for row in reader.drain()] == [4]


@pytest.mark.parametrize("value", ["", "/somewhere"])
def test_the_folder_is_the_one_that_is_set_or_our_own(monkeypatch, value):
    monkeypatch.setenv("DFX_DIR", value)
    assert default_directory() == (value or own_directory())
