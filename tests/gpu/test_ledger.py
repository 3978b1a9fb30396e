"""The shape ledger of a batch on a GPU: what it says on the host, and nothing is waited for."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

import dfx_agent.shim as dfx  # noqa: E402 (after the visible skip)
from dfx_agent.shim import recorder  # noqa: E402
from dfx_agent.wire import SegmentReader  # noqa: E402
from dfx_agent.wire.records import LEDGER, LEDGER_FIELDS  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)


def test_a_batch_on_a_device_says_what_it_says_on_the_host(dfx_dir):
    assert dfx.init(role="trainer", rank=0, directory=str(dfx_dir))
    reader = SegmentReader(recorder.current.path)

    def fields():
        rows = [row for row in reader.poll() if row[8] == LEDGER]
        return {(LEDGER_FIELDS[row[6]], reader.name(row[9])): row[3] for row in rows}

    mask = torch.arange(6)[None] < (torch.arange(8) % 6 + 1)[:, None]
    whole = torch.arange(48.0).reshape(8, 6)  # sums are exact in any order
    batch = {"sample_id": torch.arange(8), "response_mask": mask, "old_log_probs": whole}
    try:
        dfx.ledger("reward", batch)
        on_host = fields()
        on_device = {name: value.to("cuda") for name, value in batch.items()}
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        dfx.ledger("reward", on_device)
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        dfx.set_step(2)
        assert fields() == on_host
        assert on_host["mask_sum", "reward/response_mask"] == mask.sum()
        assert reader.live_words()[4] == 0
    finally:
        torch.cuda.set_sync_debug_mode("default")
        dfx.shutdown()
