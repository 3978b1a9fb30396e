"""Lightning as it is on PyPI: what runs in the closure of ``optimizer.step`` is no optimizer."""

from __future__ import annotations

import pytest
from observed_job import observe

pytest.importorskip("lightning", reason="no lightning; `make test-frameworks` installs it")

NUM_STEPS, STEP_SECONDS = 4, 0.05
JOB = f"""
import time, torch, lightning
NUM_STEPS, STEP_SECONDS = {NUM_STEPS}, {STEP_SECONDS}
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        time.sleep(STEP_SECONDS)
        loss = self.layer(batch).square().mean()
        self.log("my_loss", loss)
        return loss
    def validation_step(self, batch, index):
        self.log("my_score", self.layer(batch).mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
data = torch.utils.data.DataLoader(torch.randn(2 * NUM_STEPS, 4), batch_size=2)
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, log_every_n_steps=1,
    enable_progress_bar=False, enable_checkpointing=False, num_sanity_val_steps=0,
)
trainer.fit(Model(), data, data)
trainer.save_checkpoint("model.ckpt")
"""


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("dfx_dir")
def test_training_step_inside_the_closure_of_the_optimizer_is_forward() -> None:
    observed = observe(JOB)
    seconds = {
        name: [r.seconds for r in observed.records if (r.kind, r.name) == ("stage", name)]
        for name in ("forward", "backward", "optimizer", "validation", "checkpoint")
    }
    assert {name: len(found) for name, found in seconds.items()} == {
        "forward": NUM_STEPS, "backward": NUM_STEPS, "optimizer": NUM_STEPS,
        "validation": 1, "checkpoint": 1,
    }  # fmt: skip
    assert min(seconds["forward"]) >= STEP_SECONDS
    # Lightning calls it there, so that the agent takes it out of the optimizer's own time
    pairs = zip(seconds["optimizer"], seconds["forward"], strict=True)
    assert all(optimizer > forward for optimizer, forward in pairs)
    reported = {step: value for (name, step), (value, *_) in observed.scalars().items()
            if name == "my_loss"}  # fmt: skip
    losses = {1 if step < 0 else step: value for (name, step), (value, *_) in
              observed.scalars().items() if name == "torch/loss"}  # fmt: skip
    assert reported == losses
    assert len(reported) == NUM_STEPS
    assert ("my_score", NUM_STEPS) in observed.scalars()
    assert observed.identity["framework"] == "lightning"
    assert observed.num_errors == 0
