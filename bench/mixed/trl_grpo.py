"""TRL's GRPOTrainer on a tiny random Qwen2: the job of the framework tests, without an end."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from bench.mixed.results import Results

JOB = Path(__file__).resolve().parents[2] / "tests" / "frameworks" / "jobs" / "trl_grpo.py"


def job() -> Any:
    spec = importlib.util.spec_from_file_location("trl_grpo_job", JOB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    module = job()
    results = Results()

    class Watched(TrainerCallback):
        def on_step_end(
            self, _args: Any, state: Any, control: Any, *, model: Any, **_: Any
        ) -> None:
            if not results.take(state.global_step, model.parameters()):
                control.should_training_stop = True

    folder = os.environ["MIXED_OUT"]  # the same for all ranks: the first writes the model there
    options = {"steps": 1_000_000, "output_dir": folder, "beta": 0.1, "iterations": 1}
    options["learning_rate"] = 1e-4  # at 1e-3 its lengths and entropy collapse after 400 steps
    trainer = module.trainer(argparse.Namespace(**options, evaluate=False, seed=7))
    trainer.add_callback(Watched())
    trainer.train()


if __name__ == "__main__":
    main()
