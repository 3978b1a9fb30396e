"""Real trackers, offline: their numbers arrive once, with their step, and nothing else does."""

from __future__ import annotations

import pytest
from observed_job import observe

WANDB = """
import wandb
run = wandb.init(mode="offline", dir=".", settings=wandb.Settings(silent=True))
wandb.log({"loss": 0.5, "note": "text", "actor/kl": float("nan")}, step=3)
run.log({"loss": 0.25}, step=4)
run.finish()
"""
TENSORBOARD = """
writer = SummaryWriter("runs")
writer.add_scalar("loss", 0.5, 3)
writer.add_scalar(tag="actor/kl", scalar_value=float("nan"), global_step=3)
writer.add_scalars("reward", {"mean": 1.0, "max": 2.0}, 3)
writer.add_text("note", "text", 3)
writer.close()
"""
MLFLOW = """
import mlflow
mlflow.set_tracking_uri("sqlite:///runs.db")
with mlflow.start_run():
    mlflow.log_metric("loss", 0.5, step=3)
    mlflow.log_metrics({"actor/kl": 0.125, "reward": 1.0}, step=3)
    mlflow.log_param("note", "text")
"""
SWANLAB = """
import swanlab
run = swanlab.init(mode="offline", logdir="swanlog", project="p")
swanlab.log({"loss": 0.5}, step=3)
run.log({"loss": 0.25}, step=4)
swanlab.finish()
"""


def test_wandb(dfx_dir):
    pytest.importorskip("wandb", reason="no wandb; `make test-frameworks` installs it")
    seen = observe(WANDB)
    scalars = seen.scalars()
    assert len(scalars.pop(("actor/kl", 3))) == 1
    assert scalars == {("loss", 3): [0.5], ("loss", 4): [0.25]}
    assert (seen.steps(), seen.identity["framework"], seen.num_errors) == ([], "", 0)


@pytest.mark.parametrize("package", ["torch.utils.tensorboard", "tensorboardX"])
def test_tensorboard(package, dfx_dir):
    pytest.importorskip(package, reason=f"no {package}; `make test-frameworks` installs it")
    seen = observe(f"from {package} import SummaryWriter\n{TENSORBOARD}")
    scalars = seen.scalars()
    assert len(scalars.pop(("actor/kl", 3))) == 1
    assert scalars == {("loss", 3): [0.5], ("reward/mean", 3): [1.0], ("reward/max", 3): [2.0]}
    assert (seen.steps(), seen.identity["framework"], seen.num_errors) == ([], "", 0)


def test_mlflow(dfx_dir):
    pytest.importorskip("mlflow", reason="no mlflow; `make test-frameworks` installs it")
    pytest.importorskip("sqlalchemy", reason="mlflow without a store")
    seen = observe(MLFLOW)
    assert seen.scalars() == {
        ("loss", 3): [0.5],
        ("actor/kl", 3): [0.125],
        ("reward", 3): [1.0],
    }
    assert seen.num_errors == 0


def test_swanlab(dfx_dir):
    pytest.importorskip("swanlab", reason="no swanlab; `make test-frameworks` installs it")
    seen = observe(SWANLAB)
    assert seen.scalars() == {("loss", 3): [0.5], ("loss", 4): [0.25]}
    assert seen.num_errors == 0


def test_what_an_adapter_has_is_not_recorded_a_second_time(dfx_dir):
    pytest.importorskip(
        "torch.utils.tensorboard", reason="no tensorboard; `make test-frameworks` installs it"
    )
    job = f"""
from dfx_agent.shim import adapters
from torch.utils.tensorboard import SummaryWriter
with adapters.quiet_trackers():
    SummaryWriter("runs").add_scalar("heard_already", 1.0, 1)
{TENSORBOARD}
"""
    assert ("heard_already", 1) not in observe(job).scalars()
