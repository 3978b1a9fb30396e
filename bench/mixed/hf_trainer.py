"""Hugging Face's Trainer, 2 ranks, four micro-batches a step."""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainerCallback, TrainingArguments

from bench.mixed.results import Results

NUM_WORDS, LENGTH = 64, 32


class Watched(TrainerCallback):
    def __init__(self, model: torch.nn.Module) -> None:
        self._results = Results()
        self._model = model

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._results.take(state.global_step, self._model.parameters()):
            control.should_training_stop = True


def main() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=NUM_WORDS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = Qwen2ForCausalLM(config)
    words = torch.randint(0, NUM_WORDS, (4096, LENGTH), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in words.tolist()]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            max_steps=1_000_000,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            ddp_backend="gloo",
        )
        data = Dataset.from_list(rows)
        Trainer(model, arguments, train_dataset=data, callbacks=[Watched(model)]).train()


if __name__ == "__main__":
    main()
