"""The loss of a step with micro-batches: as Hugging Face's Trainer and accelerate have it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from observed_job import Observed, observe

for package in ("transformers", "accelerate", "datasets"):
    pytest.importorskip(package, reason=f"no {package}; `make test-frameworks` installs it")

NUM_STEPS, NUM_MICRO_BATCHES = 6, 4
MODEL = """
import json, tempfile, torch
from transformers import Qwen2Config, Qwen2ForCausalLM
torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=2))
words = torch.randint(0, 64, (256, 16), generator=torch.Generator().manual_seed(1))
"""
# labels of different lengths: the Trainer weighs micro-batches by their tokens
TRAINER = """
from datasets import Dataset
from transformers import Trainer, TrainingArguments
rows = [
    {"input_ids": row, "labels": [-100] * (index % 11) + row[index % 11:]}
    for index, row in enumerate(words.tolist())
]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, use_cpu=True, per_device_train_batch_size=2, report_to=[],
        gradient_accumulation_steps=NUM_MICRO_BATCHES, max_steps=NUM_STEPS, logging_steps=1,
        save_strategy="no", disable_tqdm=True, learning_rate=0.01, weight_decay=0.0,
    )
    trainer = Trainer(model, arguments, train_dataset=Dataset.from_list(rows))
    trainer.train()
LOGGED = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
"""
EVALUATION = """
trainer.evaluate(Dataset.from_list(rows[:4]))
HISTORY = trainer.state.log_history
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=NUM_MICRO_BATCHES)
loader = torch.utils.data.DataLoader(words[:2 * NUM_STEPS * NUM_MICRO_BATCHES], batch_size=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
LOGGED, seen = {}, []
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=batch, labels=batch).loss
        seen.append(loss.item())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        LOGGED[len(LOGGED) + 1], seen = sum(seen) / len(seen), []
"""


def losses(job: str) -> tuple[dict[str, Any], Observed]:
    numbers = f"NUM_STEPS, NUM_MICRO_BATCHES = {NUM_STEPS}, {NUM_MICRO_BATCHES}\n"
    report = '\nprint("LOGGED " + json.dumps(LOGGED))\n'
    observed = observe(numbers + MODEL + job + report, env={"HF_HUB_OFFLINE": "1"})
    line = observed.output.partition("LOGGED ")[2].splitlines()[0]
    return json.loads(line), observed


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("dfx_dir")
@pytest.mark.parametrize("job", [TRAINER, ACCELERATE], ids=["trainer", "accelerate"])
def test_loss_of_a_step_is_what_is_logged(job: str) -> None:
    logged, observed = losses(job)
    # an optimizer says which step it is at when it has made one: the first has no number
    reported = {
        1 if step < 0 else step: values
        for (name, step), values in observed.scalars().items()
        if name == "torch/loss"
    }
    assert len(logged) == NUM_STEPS
    assert reported == {int(step): [pytest.approx(loss, abs=2e-4)] for step, loss in logged.items()}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("dfx_dir")
def test_trainer_without_trl_reports_what_it_logs() -> None:
    report = '\nprint("HISTORY " + json.dumps(HISTORY))'
    _, observed = losses(TRAINER + EVALUATION + report)
    line = observed.output.partition("HISTORY ")[2].splitlines()[0]
    logged = {
        (key, row["step"]): value
        for row in json.loads(line)
        for key, value in row.items()
        if key != "step"
    }
    seen = observed.scalars()
    assert ("eval_loss", NUM_STEPS) in logged
    assert {key: seen[key][-1] for key in logged} == logged
    assert observed.steps() == list(range(1, NUM_STEPS + 1))
    assert observed.names("stage").count("validation") == 1
    assert "actor_update" not in observed.names("stage")  # it need not be RL
    assert observed.identity["framework"] == "transformers"
    assert observed.identity["role"] == "trainer"
    assert observed.num_errors == 0


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("dfx_dir")
def test_trainer_that_is_only_imported_names_no_framework() -> None:
    observed = observe("import torch, transformers.trainer, dfx_agent.shim as dfx\ndfx.set_step(1)")
    assert observed.identity["framework"] == ""
    assert observed.parts("transformers") == {}
