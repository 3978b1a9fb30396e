"""Model FLOPs of passes on a GPU: as torch counts them, and nothing is waited for."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402 (after the visible skip)
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import dfx_agent.shim as dfx  # noqa: E402
from dfx_agent.agent.peak_flops import Peaks  # noqa: E402
from dfx_agent.shim import recorder  # noqa: E402
from dfx_agent.shim.torch import model_work  # noqa: E402
from dfx_agent.shim.torch.hooks import torch_hooks  # noqa: E402
from dfx_agent.wire import SegmentReader, job_description  # noqa: E402
from dfx_agent.wire.records import COUNT  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)
WIDTH = 512


def test_a_trained_pass_in_bfloat16(dfx_dir, monkeypatch, record_property):
    monkeypatch.setenv("DFX_DISABLE_HOOKS", "")
    model = torch.nn.Sequential(
        torch.nn.Embedding(100, WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 100)
    ).to("cuda")
    ids = torch.randint(0, 100, (8, 64), device="cuda")
    assert dfx.init(role="trainer", rank=0, directory=str(dfx_dir))
    reader = SegmentReader(recorder.current.path)
    try:
        dfx.set_step(1)
        model_work.count(model)
        with dfx.stage("actor_update"), sdpa_kernel(SDPBackend.MATH):
            with (
                FlopCounterMode(display=False) as forward,
                torch.autocast("cuda", dtype=torch.bfloat16),
            ):
                loss = model(ids).square().mean()
            with FlopCounterMode(display=False) as backward:
                loss.backward()
        torch.cuda.synchronize()
        torch.cuda._sleep(300_000_000)
        torch.cuda.set_sync_debug_mode("error")
        with torch.no_grad():
            model(ids)
        dfx.set_step(2)
        torch.cuda.set_sync_debug_mode("default")
        assert not torch.cuda.current_stream().query(), "the device was idle: this says nothing"
        counts = {reader.name(r[9]): r[3] for r in reader.poll() if r[8] == COUNT}
        forward_flops, backward_flops = (c.get_total_flops() for c in (forward, backward))
        name = "flops/{}/bfloat16/actor_update"
        assert counts[name.format("forward")] == pytest.approx(forward_flops, rel=0.02)
        assert counts[name.format("backward")] == pytest.approx(backward_flops, rel=0.02)
        name = torch.cuda.get_device_name(0)
        assert job_description.format_compute("cuda", name) in list(reader.texts(0))
        record_property("peak in bfloat16", Peaks().of(name, "bfloat16"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch_hooks.remove()
        dfx.shutdown()
        recorder.current = None
