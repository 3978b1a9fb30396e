"""Scalars that live on a GPU: recorded without waiting, read when they have arrived."""

import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

import dfx_agent.shim as dfx  # noqa: E402 (after the visible skip)
from dfx_agent.shim import recorder  # noqa: E402
from dfx_agent.wire import SegmentReader  # noqa: E402
from dfx_agent.wire.records import SCALAR  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)


@pytest.fixture
def segment(dfx_dir):
    assert dfx.init(role="trainer", rank=0, directory=str(dfx_dir))
    reader = SegmentReader(recorder.current.path)
    dfx.set_step(1)
    yield reader
    torch.cuda.set_sync_debug_mode("default")
    dfx.shutdown()


def scalars(reader):
    rows = [r for r in reader.poll() if r[8] == SCALAR]
    return [(reader.name(r[9]), r[3], r[4]) for r in rows]


def spin(milliseconds: float) -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(int(milliseconds * 1_000_000))


def test_a_scalar_on_a_busy_device_is_not_waited_for(segment):
    dfx.scalar("warm", torch.ones((), device="cuda"))  # the first copy makes stream and pinned pool
    torch.cuda.synchronize()
    dfx.set_step(2)
    scalars(segment)
    spin(300)
    value = torch.full((), 3.5, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    begin = time.perf_counter()
    dfx.scalar("actor/grad_norm", value)
    elapsed = time.perf_counter() - begin
    dfx.set_step(3)
    assert not torch.cuda.current_stream().query(), "the device was not busy: the test says nothing"
    assert scalars(segment) == []
    assert elapsed < 0.1
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    dfx.set_step(4)
    assert scalars(segment) == [("actor/grad_norm", 3.5, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_every_dtype_keeps_its_value_and_step(segment, dtype):
    for step in range(2, 6):
        dfx.set_step(step)
        dfx.scalars({"loss": torch.full((1, 1), step, dtype=dtype, device="cuda"), "lr": 0.5})
    torch.cuda.synchronize()
    dfx.set_step(9)
    got = [row for row in scalars(segment) if row[0] == "loss"]
    assert got == [("loss", float(step), step) for step in range(2, 6)]


def test_the_value_is_the_one_at_the_call_even_if_the_tensor_changes(segment):
    norm = torch.full((), 1.0, device="cuda", requires_grad=True)
    dfx.scalar("norm", norm * 2)
    del norm
    torch.empty(1 << 20, device="cuda").fill_(7.0)
    torch.cuda.synchronize()
    dfx.set_step(2)
    assert scalars(segment) == [("norm", 2.0, 1)]


def test_tokens_on_a_device_are_refused_and_counted_not_waited_for(segment):
    torch.cuda.set_sync_debug_mode("error")
    dfx.tokens("response", torch.full((), 5, device="cuda"))
    assert segment.live_words()[4] == 1
