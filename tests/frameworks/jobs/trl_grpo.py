"""A real GRPOTrainer on a tiny random Qwen2, on CPU, without a network.

    torchrun --nproc-per-node 2 trl_grpo.py --steps 4 --output-dir DIR [--beta 0.1]

The model, its tokenizer and the prompts are made here; the same seed gives the same losses. The
first rank appends each report to DIR/history.jsonl. On SIGUSR2 each rank prints a JSON line that
names the functions of TRL and below that are not what they were at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import transformers
from accelerate import Accelerator, PartialState
from accelerate.optimizer import AcceleratedOptimizer
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

CLASSES = (transformers.Trainer, GRPOTrainer, Accelerator, AcceleratedOptimizer)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per letter."""
    words = ["<pad>", "<eos>", "<unk>", *LETTERS]
    vocabulary = {word: i for i, word in enumerate(words)}
    by_letter = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    by_letter.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=by_letter, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def write_model(path: Path, words: PreTrainedTokenizerFast) -> str:
    """On disk, for the reference model is loaded from there; only the first rank can write it."""
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
        bos_token_id=words.eos_token_id,
    )
    with PartialState(cpu=True).main_process_first():
        Qwen2ForCausalLM(config).save_pretrained(path)
    return str(path)


def share_of_vowels(
    completions: list[str], data_source: list[str], trainer_state: Any, **_: object
) -> list[float]:
    """Also appends the rewards to rewards.RANK.jsonl in the output folder."""
    shares = [sum(text.count(v) for v in "aeiou") / max(len(text), 1) for text in completions]
    line = {"step": trainer_state.global_step, "sources": data_source, "rewards": shares}
    with open(f"{os.environ['DFX_TEST_REWARDS']}.{os.environ.get('RANK', '0')}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    return shares


class History(TrainerCallback):
    """Each report as one line of JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, _args: Any, state: Any, _control: Any, *, logs: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            with self.path.open("a") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def functions() -> dict[str, int]:
    """Name -> identity of every attribute of the classes that are observed."""
    members = [
        (owner.__name__, name, value) for owner in CLASSES for name, value in vars(owner).items()
    ]
    return {f"{owner}.{name}": id(value) for owner, name, value in members}


def tell_what_changed(before: dict[str, int]) -> None:
    now = functions()
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    line = json.dumps({"rank": os.environ.get("RANK"), "changed": sorted(changed)})
    os.write(1, f"\n{line}\n".encode())  # whole, whoever else is printing


def trainer(arguments: argparse.Namespace) -> GRPOTrainer:
    torch.manual_seed(arguments.seed)
    words = tokenizer()
    prompts = [LETTERS[i % 20 : i % 20 + 3 + i % 4] for i in range(64)]
    config = GRPOConfig(
        output_dir=arguments.output_dir,
        max_steps=arguments.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=12,
        beta=arguments.beta,
        learning_rate=arguments.learning_rate,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="steps" if arguments.evaluate else "no",
        save_steps=2,
        save_total_limit=1,
        eval_strategy="steps" if arguments.evaluate else "no",
        eval_steps=2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        seed=arguments.seed,
        disable_tqdm=True,
        # a second optimizer step per batch needs the log-probs of the policy that sampled it
        num_iterations=arguments.iterations,
    )
    return GRPOTrainer(
        model=write_model(Path(arguments.output_dir, "model"), words),
        reward_funcs=share_of_vowels,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts, "data_source": ["odd", "even"] * 32}),
        eval_dataset=Dataset.from_dict({"prompt": prompts[:2], "data_source": ["odd", "even"]})
        if arguments.evaluate
        else None,
        processing_class=words,
        callbacks=[History(Path(arguments.output_dir, "history.jsonl"))],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true", help="and save, every other step")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["DFX_TEST_REWARDS"] = str(Path(arguments.output_dir, "rewards"))
    before = functions()
    signal.signal(signal.SIGUSR2, lambda *_: tell_what_changed(before))
    trainer(arguments).train()


if __name__ == "__main__":
    main()
