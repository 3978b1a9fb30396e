"""Logs of trainers that nobody here knows: each form is read without an option."""

import gzip
import json
import math
import time

import pytest

from dfx_agent.node.logs.printed_pairs import pairs_of
from dfx_agent.node.logs.reader import open_logs, read
from dfx_agent.node.logs.run import Notes, UnreadableLogError
from dfx_agent.node.logs.steps import with_steps

VALUES = [(1, 0.25, 0.001), (2, 0.5, 0.002), (3, 0.75, 0.003)]
COLUMNS = {
    "step": [1, 2, 3],
    "avg_reward": [0.25, 0.5, 0.75],
    "kl_div": [0.001, 0.002, 0.003],
}


def lines(form):
    return "".join(form.format(step=s, reward=r, kl=k) for s, r, k in VALUES)


def rows_of_objects():
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]


def pandas(orient):
    """As ``DataFrame.to_json`` writes it, by hand: pandas is no dependency."""
    if orient == "split":
        data = [list(row) for row in zip(*COLUMNS.values(), strict=True)]
        return {"columns": list(COLUMNS), "index": [0, 1, 2], "data": data}
    if orient == "index":
        return {str(i): row for i, row in enumerate(rows_of_objects())}
    return {key: {str(i): v for i, v in enumerate(cells)} for key, cells in COLUMNS.items()}


PRINTED = {
    "bars": "[2026-01-03 10:00:0{step}] iter {step}/500 | rew {reward} ± 0.2 | kl {kl:.1e}\n",
    "logfmt": 'time=2026-01-03T10:00:01Z level=info step={step} reward={reward} kl={kl} msg="a"\n',
    "colons": "INFO:root:Step {step}: mean reward: {reward}, kl: {kl}\n",
    "keras": "Epoch 1/3 step {step}/500 - reward: {reward} - kl: {kl} - 3s 20ms/step\n",
    "colour": "\x1b[32mstep {step}\x1b[0m  reward {reward}  kl {kl}\n",
    "blanks": "GRPO step: {step} reward: {reward} kl: {kl}\n",
    "progress": "Train:  1%|# | {step}/99 [00:10<01:20, 1.1it/s, reward={reward}, kl={kl}]\r",
    "long progress": "Train:  1%|# | {step}/99 [10:00:10<11:01:20, reward={reward}, kl={kl}]\r",
    "YAML": "step: {step}\n  mean_reward: {reward}\n  kl_to_ref: {kl}\n---\n",
    "table of SB3": "| time/ | |\n| iterations | {step} |\n| train/ | |\n"
    "| mean_reward | {reward} |\n| ref_kl | {kl} |\n----\n",
    "message": '{{"asctime": "x", "message": "step={step} reward={reward} kl={kl}"}}\n',
    "loguru": '{{"record": {{"extra": {{"step": {step}, "reward": {reward}, "ref_kl": {kl}}},'
    ' "line": 12, "level": {{"no": 20}}}}}}\n',
    "nested": '{{"step": {step}, "metrics": {{"reward": {{"mean": {reward}, "std": 0.5}},'
    ' "kl": {{"ref": {kl}}}}}}}\n',
    "a line above": "[Update {step}/915] | FPS: 35 | ETA: 21:53:50\n"
    " └─ reward: {reward} | kl: {kl}\n\n",
    "batch of an epoch": "Epoch:[1/1]({step}/39695), reward: {reward}, kl: {kl}, lr: 0.1\n",
    "ImageNet": "Epoch: [0][ {step}/500]  Time 0.3 (0.5)  reward {reward} (0.5)  kl {kl} (0.1)\n",
    "short word": "upd {step}/1,500 reward={reward} kl={kl}\n",
    "step of a dict": "step {step} {{'reward': {reward}, 'kl': {kl}}}\n",
    "step of many of a dict": "[10:00:00] upd {step}/1,500 {{'reward': {reward}, 'kl': {kl}}}\n",
    "units": "{step},{reward},{kl}\n",
}
DOCUMENTS = {
    "list": rows_of_objects(),
    "columns": COLUMNS,
    "list under a key": {"config": {"lr": 1e-6}, "history": rows_of_objects()},
    "columns under a key": {"name": "a", "metrics": COLUMNS},
    "objects next to columns": {
        "step": COLUMNS["step"],
        "episode_rewards": COLUMNS["avg_reward"],
        "metrics": [{"kl_div": kl} for kl in COLUMNS["kl_div"]],
    },
    "points of each name": {
        "metrics": {
            name: [{"step": s, "value": v, "epoch": 0.5} for s, v in enumerate(cells, 1)]
            for name, cells in COLUMNS.items()
            if name != "step"
        }
    },
    "pandas split": pandas("split"),
    "pandas index": pandas("index"),
    "pandas columns": pandas("columns"),
}


def judged(run):
    """(step, reward, KL) of each row, by whatever key."""

    def value(values, *names):
        return next((values[name] for name in names if name in values), None)

    rewards = ("signal/reward", "reward", "reward/mean")
    return [
        (step, value(values, *rewards), value(values, "signal/ref_kl", "kl", "kl/ref"))
        for step, values in run.rows
    ]


@pytest.mark.parametrize("form", PRINTED)
@pytest.mark.parametrize("is_packed", [False, True])
def test_lines_in_this_form_are_read(tmp_path, form, is_packed):
    text = lines(PRINTED[form])
    if form == "units":
        text = f"Iteration,Reward (mean),KL [nats]\n{text}"
    name = "a.csv" if form == "units" else "a.log"
    data = text.encode()
    path = tmp_path / (f"{name}.gz" if is_packed else name)
    path.write_bytes(gzip.compress(data) if is_packed else data)
    assert judged(read(path)) == VALUES


@pytest.mark.parametrize("form", DOCUMENTS)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_document_in_this_form_is_read(tmp_path, form, indent):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(DOCUMENTS[form], indent=indent))
    assert judged(read(path)) == VALUES


# excerpts of published logs; sources in shared/data/native/INVENTORY.csv
PUBLISHED = {
    "rec-grpo": (
        (
            '{"step":0,"epoch":1,"lr":2e-07,"loss":-0.003092,"reward_mean":0.063859,"reward_std":0.09,'
            '"ndcg_mean":0.048235,"kl":0.0,"clip_frac":0.0,"active_rollouts":30}\n'
            '{"step":10,"epoch":1,"lr":2.2e-06,"loss":-0.01843,"reward_mean":0.058583,"reward_std":0.1,'
            '"ndcg_mean":0.035145,"kl":0.000305,"clip_frac":0.004433,"active_rollouts":49}\n'
        ),
        {"loss": -0.003092, "reward": 0.063859, "kl": 0.0, "clip_fraction": 0.0},
        [0, 10],
    ),
    "rookworld": (
        (
            '{"step": 1, "loss": -0.049, "mean_reward": 0.63, "kl_div": 0.0, "memory_gb": 2.4}\n'
            '{"step": 2, "loss": -0.052, "mean_reward": 0.66, "kl_div": -0.002, "memory_gb": 2.4}\n'
        ),
        {"reward": 0.63, "ref_kl": 0.0},
        [1, 2],
    ),
    "tinker": (
        (
            '{"step": 0, "test/env/all/reward/total": 0.59, "env/all/ac_tokens_per_turn": 3496.8,'
            ' "env/all/total_ac_tokens": 1790378, "env/all/reward/total": 0.56,'
            ' "optim/kl_sample_train_v1": 0.0008, "optim/kl_sample_train_v2": 0.0009,'
            ' "optim/entropy": 0.47}\n'
            '{"step": 1, "env/all/ac_tokens_per_turn": 2489.2, "env/all/reward/total": 0.61,'
            ' "optim/kl_sample_train_v1": 0.0009, "optim/kl_sample_train_v2": 0.001,'
            ' "optim/entropy": 0.53}\n'
        ),
        {"reward": 0.56, "entropy": 0.47, "mismatch_kl": 0.0008, "response_length": 3496.8},
        [0, 1],
    ),
    "gridmind": (
        (
            "step,loss,rewards/reward_json_valid/mean,rewards/reward_env/mean,rewards/reward/mean\n"
            "0,1.9e-05,0.14,0.02,0.55\n5,1.2e-05,0.146,0.02,0.56\n"
        ),
        {"reward": 0.55},
        [0, 5],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_log_is_read_by_meaning(tmp_path, name):
    text, signals, steps = PUBLISHED[name]
    path = tmp_path / "a.log"
    path.write_text(text)
    run = read(path)
    assert [step for step, _ in run.rows] == steps
    first = run.rows[0][1]
    by_meaning = {key: first.get(f"signal/{key}", first.get(key)) for key in signals}
    assert by_meaning == signals


def test_a_notebook_with_lines_of_verl(tmp_path):
    text = "(main_task pid=7) step:0 - critic/score/mean:0.012 - actor/grad_norm:2.304\n"
    cells = [{"outputs": [{"text": [text, text.replace("step:0", "step:1")]}]}]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "cells": cells}))
    run = read(path)
    assert run.framework == "verl"
    assert run.rows[1] == (1, {"critic/score/mean": 0.012, "actor/grad_norm": 2.304})


@pytest.mark.parametrize(
    "text",
    [
        "The accuracy was 0.9 and the loss: 0.5, as we said.\nNothing else: see page 3.\n",
        "lr=1e-6 clip_ratio_high=0.28 max_grad_norm=1.0\nseed=42 kl_coef=0.1\n",
        "torch==2.1\nnumpy==1.26\n",
    ],
)
def test_prose_and_settings_are_no_log(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(UnreadableLogError):
        read(path)


def test_a_report_of_a_framework_goes_before_pairs(tmp_path):
    path = tmp_path / "a.log"
    pairs = "step=7 reward=9.0 kl=9.0\n" * 3
    path.write_text(pairs + "{'loss': 0.1, 'reward': 0.5, 'kl': 0.1, 'epoch': 0.1}\n")
    assert [values["reward"] for _, values in read(path).rows] == [0.5]


def test_a_printed_dict_of_words_is_no_report(tmp_path):
    path = tmp_path / "a.log"
    sample = "{'step': 0, 'agent': 'maker', 'kind': 'N/A', 'why': 'x', 'reward': -0.5}\n"
    path.write_text("{'loss': 0.1, 'reward': 0.5, 'kl': 0.1}\n" + sample)
    assert [values["reward"] for _, values in read(path).rows] == [0.5]


# ------------------------------------------------------------------------------------------ steps


def stepped(records, key=None):
    notes = Notes()
    return list(with_steps([dict(record) for record in records], notes, key)), notes


@pytest.mark.parametrize(
    "key", ["iter", "trainer/update", "num_episodes", "record/extra/step", "samples_seen"]
)
def test_a_key_that_rises_by_a_constant_amount_is_the_step(key):
    records = [{"n": 5 * i * i, "wall": 1.5 * i, key: 512 * i, "x": 3.0} for i in range(20)]
    rows, notes = stepped(records)
    assert [step for step, _ in rows] == [512 * i for i in range(20)]
    assert notes.guessed == {"step": key}


def test_a_name_of_a_step_goes_before_a_counter():
    records = [{"samples": 512 * i, "iter": i} for i in range(20)]
    assert stepped(records)[1].guessed == {"step": "iter"}


def test_a_step_that_never_rises_is_not_read():
    rows, notes = stepped([{"step": 7, "iter": i, "x": 1.0} for i in range(20)])
    assert [step for step, _ in rows] == list(range(20))
    assert "step never rises: not read as the step" in notes.lines


def test_without_a_step_rows_are_counted_and_it_is_said():
    rows, notes = stepped([{"x": float(i % 3), "y": i * i} for i in range(20)])
    assert [step for step, _ in rows] == list(range(20))
    assert notes.lines == ["records without a step: counted from 0"]


def test_a_step_that_begins_again_each_epoch_gives_way_to_one_that_does_not():
    records = [{"step": i % 5, "global_step": i, "x": 1.0} for i in range(20)]
    assert [step for step, _ in stepped(records)[0]] == list(range(20))


def test_parts_of_a_step_are_one_row_also_when_they_come_late():
    records = []
    for i in range(6):
        records.append({"step": i, "reward": float(i)})
        if i:
            records.append({"step": i - 1, "loss": float(i - 1)})
    rows, _ = stepped(records)
    assert [step for step, _ in rows] == list(range(6))
    assert all(values == {"reward": step, "loss": step} for step, values in rows[:-1])


def test_two_attempts_are_not_mixed():
    attempt = [{"step": i, "reward": 0.5, "loss": 1.0} for i in range(4)]
    rows, _ = stepped([*attempt, *attempt[1:]])
    assert [step for step, _ in rows] == [0, 1, 2, 3, 1, 2, 3]


def test_an_attempt_that_logs_one_part_first_is_not_mixed_with_the_one_before():
    first = [part for i in range(4) for part in ({"step": i, "reward": 0.5}, {"step": i, "kl": 1})]
    again = [part for i in (2, 3) for part in ({"step": i, "reward": 0.7}, {"step": i, "kl": 2})]
    rows, _ = stepped([*first, *again])
    assert [step for step, _ in rows] == [0, 1, 2, 3, 2, 3]
    assert rows[4] == (2, {"reward": 0.7, "kl": 2})


def test_shuffled_rows_are_sorted_and_it_is_said():
    order = [(i * 37) % 101 for i in range(101)]
    rows, notes = stepped([{"step": i, "x": float(i)} for i in order])
    assert rows == [(i, {"x": float(i)}) for i in range(101)]
    assert notes.lines == ["the step is in random order: the rows are sorted by step"]


def test_an_evaluation_does_not_overwrite_the_training_of_its_step(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(
            f'{{"phase": "rollout", "step": {i}, "reward": 0.5, "response_len": 100}}\n'
            f'{{"phase": "train", "step": {i}, "kl": 0.1}}\n'
            f'{{"phase": "eval", "step": {i}, "reward": 0.9}}\n'
            for i in range(3)
        )
    )
    run = read(path)
    assert [step for step, _ in run.rows] == [0, 1, 2]
    assert [values["signal/reward"] for _, values in run.rows] == [0.5] * 3
    kls = [values.get("kl", values.get("signal/ref_kl")) for _, values in run.rows]
    assert kls == [0.1] * 3


# --------------------------------------------------------------------------------------- left out


@pytest.mark.parametrize(
    ("name", "text", "num"),
    [
        ("a.jsonl", '{"step": 1, "kl": 1}\n{"step": 2, "k\n{"step": 3, "kl": 1}\nx\n', 2),
        ("b.jsonl", '{"step": 1, "kl": 1}\n{"kl": 2}\n{"step": 3, "kl": 1}\n', 1),
        ("c.csv", "step,reward,kl\n1,0.5,0.1\n2,0.5\n3,0.5,0.1\n", 1),
        ("d.jsonl", '{"step": 1, "kl": 1}\n{"step": 2, "kl": 1}\n', 0),
        ("e.jsonl", '{"step": 1, "kl": 1}\n{"cpu": 2}\n{"step": 3, "kl": 1}\n', 0),
    ],
)
def test_damaged_lines_and_rows_without_a_step_are_counted(tmp_path, name, text, num):
    path = tmp_path / name
    path.write_text(text)
    (log,) = open_logs(path)
    assert len(list(log.rows())) == 2
    assert log.num_left_out == num
    assert all(math.isfinite(step) for step, _ in log.rows())


@pytest.mark.parametrize(
    "line",
    ["a" * 19_000 + "=", "a.b" * 6_000 + " :", "a" * 19_000 + ": 1x", "1 | a 1 (" + "x" * 19_000],
    ids=range(4),
)
def test_a_line_of_one_long_word_takes_no_second(line):
    begin = time.process_time()
    assert len(pairs_of(line)) <= 1
    assert time.process_time() - begin < 1.0


def test_settings_printed_as_a_dict_do_not_hide_the_tables_below(tmp_path):
    table = (
        "--------\n| epoch | {} |\n| train/success_rate | 0.5 |\n| stats_o/std | 0.1 |\n--------\n"
    )
    path = tmp_path / "a.log"
    path.write_text(
        "params: {'batch_size': 256, 'hidden': 8}\n" + "".join(map(table.format, range(4)))
    )
    assert [step for step, _ in read(path).rows] == [0, 1, 2, 3]


def test_a_step_above_a_thousand_has_a_comma(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("".join(f"update {i:,}/9,000 reward={i}.5 kl=0.1\n" for i in (999, 1000, 1200)))
    assert [step for step, _ in read(path).rows] == [999, 1000, 1200]


def test_batches_that_begin_again_with_each_epoch_are_counted_on(tmp_path):
    path = tmp_path / "a.log"
    line = "Epoch: [{}][{}/3]  Loss 6.9 (7.0)\n"
    path.write_text("".join(line.format(epoch, i) for epoch in range(2) for i in range(3)))
    assert [step for step, _ in read(path).rows] == [0, 1, 2, 3, 4, 5]


def test_episodes_that_end_at_one_step_are_one_row_with_their_mean(tmp_path):
    path = tmp_path / "a.log"
    returns = [(8, 1.0), (12, 2.0), (12, 4.0), (16, 5.0)]
    path.write_text("".join(f"global_step={s}, episodic_return=[{r}]\n" for s, r in returns))
    run = read(path)
    assert [(step, values["signal/reward"]) for step, values in run.rows] == [
        (8, 1),
        (12, 3),
        (16, 5),
    ]
    assert "step 12 is reported several times in a row: the mean is read" in run.warnings


def test_an_evaluation_between_tables_belongs_to_the_table_above(tmp_path):
    """As EvalCallback of Stable-Baselines3 prints."""
    train = (
        "-----\n| time/ | |\n| iterations | {0} |\n| ep_rew_mean | {0}.5 |\n| fps | 9 |\n-----\n"
    )
    evaluation = (
        "Eval num_timesteps=100, episode_reward=115.83 +/- 0.00\nEpisode length: 9.00 +/- 0.00\n"
        "-----\n| eval/ | |\n| mean_reward | 116 |\n| loss | 7.5 |\n-----\n"
    )
    path = tmp_path / "a.log"
    path.write_text("".join(train.format(i) + evaluation * (i % 5 == 0) for i in range(1, 21)))
    run = read(path)
    assert [(step, values["signal/reward"]) for step, values in run.rows] == [
        (i, i + 0.5) for i in range(1, 21)
    ]
    assert run.rows[4][1]["episode_reward"] == 115.83
    assert run.warnings[0].startswith("ep_rew_mean is read as reward")


def test_a_number_behind_the_word_train_is_the_loss(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{i} val 4.5\n{i} train 3.{i}\n{i} hella 0.2\n" for i in range(5)))
    run = read(path)
    assert [(step, values["signal/loss"]) for step, values in run.rows] == [
        (i, float(f"3.{i}")) for i in range(5)
    ]
