"""Logs in the forms in which people publish them, all of one made-up run that collapses.

``write_all(folder)`` writes a file a form. The words around the numbers are those of the trainers.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

NUM_ROWS, ONSET_ROW = 90, 60

_RNG = random.Random(7)


def _row(i: int) -> dict[str, float]:
    is_bad = i >= ONSET_ROW
    return {
        "reward": _RNG.gauss(0.08 if is_bad else 0.6, 0.03),
        "length": (20 if is_bad else 500) * _RNG.lognormvariate(0, 0.06),
        "grad": (4 if is_bad else 0.4) * _RNG.lognormvariate(0, 0.15),
        "entropy": (1.5 if is_bad else 0.3) * _RNG.lognormvariate(0, 0.05),
        "kl": (0.3 if is_bad else 0.02) * _RNG.lognormvariate(0, 0.1),
        "loss": _RNG.gauss(0, 0.01),
    }


ROWS = [_row(i) for i in range(NUM_ROWS)]
# how verl, and what exports make of TRL, call the five
VERL = {"actor/ppo_kl": "kl", "actor/grad_norm": "grad", "actor/entropy": "entropy",
        "critic/score/mean": "reward", "response_length/mean": "length"}  # fmt: skip
TRL = {"train/kl": "kl", "train/grad_norm": "grad", "train/entropy": "entropy",
       "train/reward": "reward", "train/completions/mean_length": "length"}  # fmt: skip


def _trl(i: int) -> dict[str, float]:
    row = ROWS[i]
    return {
        "loss": round(row["loss"], 4), "grad_norm": row["grad"], "learning_rate": 1e-6 * (90 - i),
        "num_tokens": 1000.0 * i, "completions/mean_length": row["length"],
        "completions/clipped_ratio": 0.0, "rewards/accuracy_reward/mean": row["reward"],
        "reward": row["reward"], "reward_std": 0.2, "kl": row["kl"], "entropy": row["entropy"],
        "clip_ratio/region_mean": 0.0, "epoch": round(0.01 * (i + 1), 2),
    }  # fmt: skip


def _trl_between_bars() -> str:
    """transformers: the bar is drawn over, the dict comes behind it, warnings come between."""
    text = 'GenerationConfig {\n  "max_length": 512\n}\n'
    for i in range(NUM_ROWS):
        bar = f"\r  {i}%|█▋        | {i}/{NUM_ROWS} [{i}:10<3:00:00, 35.12s/it]"
        text += f"{bar}{' ' * 40}\r{_trl(i)}\n{bar}"
        text += "/opt/x.py:295: FutureWarning: `torch.cuda.amp` is deprecated.\n" if i % 20 else ""
    return text + "\n{'train_runtime': 4000.1, 'train_loss': 0.01, 'epoch': 0.9}\n"


def _trl_of_two_ranks() -> str:
    """Newer transformers put numbers into quotes; torchrun puts the rank in front."""
    quoted = [str({key: str(value) for key, value in _trl(i).items()}) for i in range(NUM_ROWS)]
    return "".join(f"[default{rank}]:{text}\n" for text in quoted for rank in range(2))


def _swift() -> str:
    text = ""
    for i in range(NUM_ROWS):
        reported = _trl(i) | {"global_step/max_steps": f"{i + 1}/{NUM_ROWS}", "percentage": f"{i}%",
                          "elapsed_time": "1h 2m"}  # fmt: skip
        text += f"Train:  {i}%|▏  | {i}/{NUM_ROWS} [1:00<2:00, 40s/it]\r{reported}\n"
    return text


def _notebook() -> str:
    names = {"Training Loss": "loss", "reward": "reward", "completions / mean_length": "length",
             "kl": "kl", "entropy": "entropy"}  # fmt: skip
    head = "".join(f"<th>{name}</th>" for name in ("Step", *names))
    body = "".join(
        f"<tr><td>{i + 1}</td>"
        + "".join(f"<td>{row[key]:.6f}</td>" for key in names.values()) + "</tr>"
        for i, row in enumerate(ROWS)
    )  # fmt: skip
    html = f"<div><progress value='9'></progress></div><table><tr>{head}</tr>{body}</table>"
    outputs = [{"output_type": "stream", "text": ["==((====))==  Unsloth\n"]},
               {"output_type": "display_data", "data": {"text/html": [html]}}]  # fmt: skip
    cells = [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": outputs}]
    return json.dumps({"cells": cells, "nbformat": 4})


def _wandb_export(keys: dict[str, str], step: str) -> str:
    """The download button of a chart: three columns a curve."""
    ends = ("", "__MIN", "__MAX")
    head = [step, *(f"qwen-grpo - {key}{end}" for key in keys for end in ends)]
    lines = [[i, *(row[key] for key in keys.values() for _ in ends)] for i, row in enumerate(ROWS)]
    return "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in [head, *lines])


def _semicolons() -> str:
    lines = [[i, *(repr(row[key]).replace(".", ",") for key in VERL.values())]
             for i, row in enumerate(ROWS)]  # fmt: skip
    return "".join(";".join(map(str, line)) + "\n" for line in [["step", *VERL], *lines])


def _jsonl(keys: dict[str, str], step: str) -> str:
    rows = (
        {step: i} | {key: row[entry] for key, entry in keys.items()} for i, row in enumerate(ROWS)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def _wandb_history() -> str:
    return "".join(
        json.dumps({"_step": 3 * i, "_runtime": 30.0 * i, "train/global_step": i}
                   | {key: row[entry] for key, entry in TRL.items()}) + "\n"
        for i, row in enumerate(ROWS)
    )  # fmt: skip


def _verl_in_colour() -> str:
    text = ""
    for i, row in enumerate(ROWS):
        reported = " - ".join(f"{key}:np.float64({row[entry]})" for key, entry in VERL.items())
        text += "\x1b[36m(WorkerDict pid=7)\x1b[0m INFO [pool.py:1] reset prefix cache\n"
        text += f"\x1b[36m(TaskRunner pid=4)\x1b[0m step:{i} - {reported} - timing_s/gen:30.1\n"
        text += f"\x1b[36m(TaskRunner pid=4)\x1b[0m \rTraining Progress:  {i}%|▏ | {i}/90\n"
    return text


def _prime_rl(i: int) -> tuple[str, str]:
    row, begin = ROWS[i], "\x1b[32m10:00:01\x1b[0m \x1b[32m\x1b[1mSUCCESS\x1b[0m \x1b[1m"
    rollouts = (
        f"{begin}Step {i} | Time: 30.12s | Reward: {row['reward']:.4f} | Throughput: 1234.5 "
        f"tokens/s | Seq. Length: {row['length']:.1f} tokens/sample | Async Level: 1\x1b[0m\n"
    )
    trainer = (
        f"{begin}Step {i} | Time: 30.12s | Loss: {row['loss']:.4f} | Entropy: {row['entropy']:.4f} "
        f"| Mismatch KL: {row['kl']:.4f} | Grad. Norm: {row['grad']:.4f} | LR: 1.00e-06\x1b[0m\n"
    )
    return rollouts, trainer


def _roll() -> str:
    text = ""
    for i, row in enumerate(ROWS):
        begin = "[2026-01-01 10:00:00] [rlvr_pipeline.py (722)] [INFO] [DRIVER 0 / 1][PID 99]"
        reported = {"system/step": i, "actor/policykl@mean": row["kl"], "actor/loss": row["loss"],
                "actor_train/grad_norm@mean": row["grad"], "critic/entropy/mean": row["entropy"],
                "critic/score/mean": row["reward"],
                "tokens/response_length/mean": row["length"]}  # fmt: skip
        text += f"{begin} {json.dumps(reported)}\n{begin} pipeline step {i} finished\n"
    return text


def _openrlhf() -> str:
    text = ""
    for i, row in enumerate(ROWS):
        reported = {
            "policy_loss": row["loss"], "actor_lr": 5e-7, "ppo_kl": row["kl"], "kl": row["kl"],
            "response_length": row["length"], "total_length": 100 + row["length"],
            "reward": row["reward"], "return": row["reward"],
        }  # fmt: skip
        text += (
            f"\x1b[36m(PPOTrainer pid=7)\x1b[0m 2026-01-01 10:00 | ✨ Global step {i}: {reported}\n"
        )
    return text


def _swanlab() -> str:
    """The data frame of its API: a column of timestamps beside each key."""
    head = ["step", *(name for key in TRL for name in (key, f"{key}_timestamp"))]
    lines = [[i, *(cell for entry in TRL.values() for cell in (row[entry], 17000 + i))]
             for i, row in enumerate(ROWS)]  # fmt: skip
    return "".join(",".join(map(str, line)) + "\n" for line in [head, *lines])


def _mlflow() -> str:
    lines = (f"a1,{key},{row[entry]},{i},17000\n"
             for i, row in enumerate(ROWS) for key, entry in VERL.items())  # fmt: skip
    return "run_id,key,value,step,timestamp\n" + "".join(lines)


def _texts() -> Iterator[tuple[str, str, str]]:
    """Name, text, encoding."""
    parts = [_prime_rl(i) for i in range(NUM_ROWS)]
    yield "trl_bars.log", _trl_between_bars(), "utf-8"
    yield "trl_ranks.out", _trl_of_two_ranks(), "utf-8"
    yield "trl_powershell.log", "\r\n".join(str(_trl(i)) for i in range(NUM_ROWS)), "utf-16"
    yield "swift.log", _swift(), "utf-8"
    yield "notebook.ipynb", _notebook(), "utf-8"
    yield "wandb_export.csv", _wandb_export(TRL, "train/global_step"), "utf-8"
    yield "wandb_one_chart.csv", _wandb_export({"train/reward": "reward"}, "Step"), "utf-8"
    yield "wandb_history.jsonl", _wandb_history(), "utf-8"
    yield "semicolons.csv", _semicolons(), "utf-8-sig"
    yield "verl_colour.log", _verl_in_colour(), "utf-8"
    yield "prime_rl.log", "".join(map("".join, parts)), "utf-8"
    yield "prime_rl_orchestrator.log", "".join(rollouts for rollouts, _ in parts), "utf-8"
    yield "roll.log", _roll(), "utf-8"
    yield "openrlhf.log", _openrlhf(), "utf-8"
    yield "swanlab.csv", _swanlab(), "utf-8"
    yield "mlflow.csv", _mlflow(), "utf-8"
    yield "loss_and_reward.jsonl", _jsonl({"loss": "loss", "reward": "reward"}, "step"), "utf-8"
    yield "two_of_five.jsonl", _jsonl({"kl": "kl", "entropy": "entropy"}, "step"), "utf-8"
    yield "own_names.jsonl", _jsonl({"score": "reward", "gen_len": "length"}, "it"), "utf-8"
    yield "headerless.csv", "".join(f"{i},{r['reward']},{r['length']}\n"
                                    for i, r in enumerate(ROWS)), "utf-8"  # fmt: skip
    yield "noise.log", "INFO starting\nRuntimeError: {'a': 1}\n" * 30, "utf-8"


def write_all(folder: Path) -> None:
    for name, text, encoding in _texts():
        (folder / name).write_text(text, encoding=encoding, newline="")
    whole = gzip.compress(_jsonl(VERL, "step").encode())
    (folder / "cut.jsonl.gz").write_bytes(whole[: len(whole) * 85 // 100])
