"""Loss, gradient norm and AMP on a GPU: a step under the hooks waits for nothing."""

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
    dfx.set_step(1)
    yield SegmentReader(recorder.current.path)
    torch.cuda.set_sync_debug_mode("default")
    dfx.shutdown()


def scalars(reader, name):
    """What has arrived of it since the last call."""
    torch.cuda.synchronize()
    recorder.current._deferred.flush()
    return [row[3] for row in reader.poll() if row[8] == SCALAR and reader.name(row[9]) == name]


@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_loss_is_told_as_it_is_and_not_waited_for(segment, is_scaled):
    model = torch.nn.Linear(8, 1).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=3.0, enabled=is_scaled)
    given = []

    def backward():
        optimizer.zero_grad()
        given.append(model(torch.ones(2, 8, device="cuda")).square().mean())
        scaler.scale(given[-1]).backward()
        given.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True))

    backward()  # the first copy makes stream and pinned pool
    optimizer.step()
    scalars(segment, "torch/loss")
    torch.cuda._sleep(300_000_000)
    torch.cuda.set_sync_debug_mode("error")
    backward()
    torch.cuda.set_sync_debug_mode("default")
    assert not torch.cuda.current_stream().query(), "the device was idle: this says nothing"
    assert segment.live_words()[4] == 0
    assert scalars(segment, "torch/loss") == [given[-2].item()]
    backward()
    assert scalars(segment, "torch/grad_norm") == [given[-1].item()]
