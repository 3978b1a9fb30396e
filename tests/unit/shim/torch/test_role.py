"""A process that only serves is a rank of role rollout; one that trains never is for long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[3]

HEAD = """
from dfx_agent.shim import bootstrap, recorder
from dfx_agent.shim.lifecycle import guest
bootstrap.arm()
import torch
from dfx_agent.shim.torch.modules import SERVING
hooks = torch.nn.modules.module._global_forward_pre_hooks
assert len(hooks) == 1
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
x = torch.ones(2, 4)
def serve(times):
    with torch.inference_mode():
        for _ in range(times):
            model(x)
def role():
    return recorder.current and recorder.current.identity.role
"""
SERVES = """
serve(2)
assert role() is None
serve(1)
assert role() == "rollout", role()
assert not hooks, "the hook is gone once it has seen enough"
serve(1000)
assert not SERVING.is_active
"""
TRAINS_AFTER_ALL = """
serve(3)
assert role() == "rollout"
model(x).sum().backward()
assert role() == "trainer"
"""
TRAINS = """
model(x).sum().backward()
assert not hooks or not SERVING.is_active
serve(5)
assert role() != "rollout"
"""
CALLS_WITHOUT_END = """
for _ in range(1001):
    model(x)
assert not hooks
serve(5)
assert role() is None
"""
HAS_NO_PARAMETERS = """
model = torch.nn.Tanh()
serve(5)
assert role() is None
"""
COMPILES = """
import warnings
warnings.simplefilter("error")
compiled = torch.compile(model, backend="eager")
assert not SERVING.is_active
assert not hooks
with torch.no_grad():
    compiled(x)
"""
FAILS = """
class Strange(torch.nn.Linear):
    def parameters(self, recurse=True):
        raise RuntimeError("mine")
model = Strange(4, 4)
serve(5)
assert role() is None
assert not hooks
"""
ENDS = """
from dfx_agent.shim import patches
guest.stop()
assert not hooks
assert not SERVING.is_active
"""


def run(script: str, dfx_dir: Path, **changes: str) -> None:
    stored = {k: v for k, v in os.environ.items() if not k.startswith("DFX_") and k != "RANK"}
    environment = {**stored, "PYTHONPATH": str(ROOT), "DFX_DIR": str(dfx_dir), **changes}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]


@pytest.mark.parametrize(
    "script",
    [
        SERVES, TRAINS_AFTER_ALL, TRAINS, CALLS_WITHOUT_END, HAS_NO_PARAMETERS, COMPILES, FAILS,
        ENDS,
    ],
    ids=[
        "serves", "trains after all", "trains", "calls without end", "no parameters", "compiles",
        "fails", "ends",
    ],
)  # fmt: skip
def test_an_armed_process(script: str, dfx_dir: Path) -> None:
    run(script, dfx_dir)


@pytest.mark.parametrize("changes", [{"RANK": "0"}, {"DFX_ROLE": "critic"}])
def test_who_is_named_already_has_no_hook(changes: dict[str, str], dfx_dir: Path) -> None:
    script = HEAD.replace("len(hooks) == 1", "not hooks")
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT), "DFX_DIR": str(dfx_dir), **changes},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("begin", "role"),
    [("guest.start(None)", "trainer"), ("guest.start(None, role='critic')", "critic")],
)
def test_who_trains_is_a_trainer_unless_the_job_says_otherwise(begin, role, dfx_dir) -> None:
    run(f"{begin}\nmodel(x).sum().backward()\nassert role() == {role!r}\n", dfx_dir)
