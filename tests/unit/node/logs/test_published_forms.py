"""Logs in the forms in which people publish them; every line here is made up."""

from __future__ import annotations

import gzip
import json
import math

import pytest

from dfx_agent.catalogue.native import Native, load
from dfx_agent.node.logs import lines
from dfx_agent.node.logs.key_map import parse
from dfx_agent.node.logs.reader import open_logs, read
from dfx_agent.node.logs.run import MAX_KEYS, NotALogError, UnreadableLogError


def write(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


def report(i: int, **more: object) -> str:
    values = {"loss": 0.1, "grad_norm": 0.5, "learning_rate": 1e-6 * i, "reward": i / 8}
    return str(values | {"kl": 0.01, "epoch": round(0.01 * i, 2)} | more)


# ---------------------------------------------------------------------------------------- console


def test_trl_dicts_are_found_between_progress_bars_colours_and_carriage_returns(tmp_path):
    noise = "\r  5%|5         | {n}/100 [00:01<00:20,  4.9it/s]"
    text = "Loading {'max_length': 512, 'use_cache': False}\n"
    for i in range(1, 4):
        text += noise.format(n=i) + "\r" + noise.format(n=i) + f"\x1b[32m{report(i)}\x1b[0m\n"
    run = read(write(tmp_path / "train.out", text))
    assert run.framework == "trl"
    assert [(step, values["reward"]) for step, values in run.rows] == [
        (0, 0.125), (1, 0.25), (2, 0.375),
    ]  # fmt: skip
    assert "dicts hold no key that is known: left out" in run.warnings
    assert "no step in the lines: reports are counted from 0" in run.warnings


def test_ms_swift_s_step_of_many_is_the_step(tmp_path):
    text = "".join(str({"reward": 0.5, "kl": 0.1, "global_step/max_steps": f"{i}/90"}) + "\n"
                   for i in (5, 10, 15))  # fmt: skip
    run = read(write(tmp_path / "log", text))
    assert [step for step, _ in run.rows] == [5, 10, 15]
    assert run.warnings == []


def test_nan_inf_wrapped_and_quoted_numbers_are_numbers(tmp_path):
    text = (
        "{'loss': nan, 'grad_norm': inf, 'reward': np.float64(0.5), "
        "'kl': tensor(0.25, device='x')}\n"
        "{'loss': '0.125', 'grad_norm': '-inf', 'reward': '1e-3', 'kl': '0'}\n"
    )
    first, second = (values for _, values in read(write(tmp_path / "log", text)).rows)
    assert math.isnan(first.pop("loss"))
    assert first == {"grad_norm": math.inf, "reward": 0.5, "kl": 0.25}
    assert second == {"loss": 0.125, "grad_norm": -math.inf, "reward": 1e-3, "kl": 0.0}


def test_evaluations_belong_to_the_report_before_them(tmp_path):
    text = f"{report(1)}\n{{'eval_loss': 0.5, 'epoch': 0.01}}\n{report(2)}\n"
    rows = read(write(tmp_path / "log", text)).rows
    assert [step for step, _ in rows] == [0, 1]
    assert rows[0][1]["eval_loss"] == 0.5


def test_a_smaller_epoch_is_a_resumed_job(tmp_path):
    text = "".join(report(i) + "\n" for i in (1, 2, 3, 4, 2, 3))
    run = read(write(tmp_path / "log", text))
    assert [step for step, _ in run.rows] == [0, 1, 2, 3, 1, 2]
    assert any("epoch goes back" in line for line in run.warnings)


def test_of_several_processes_one_is_followed_and_the_others_are_counted(tmp_path):
    text = "".join(
        f"[rank{rank}]: {report(i, reward=i + rank / 10)}\n" for i in range(5) for rank in range(3)
    )
    run = read(write(tmp_path / "log", text))
    assert [values["reward"] for _, values in run.rows] == [0, 1, 2, 3, 4]
    reported = next(line for line in run.warnings if "another process" in line)
    assert "(9 more such)" in reported


def test_a_process_that_continues_alone_is_followed(tmp_path):
    text = "".join(f"(Trainer pid={7 if i < 5 else 8}) {report(i)}\n" for i in range(12))
    run = read(write(tmp_path / "log", text))
    assert [values["reward"] * 8 for _, values in run.rows] == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
    assert any("followed from there" in line for line in run.warnings)


def test_slime_s_parts_of_a_rollout_are_one_row(tmp_path):
    text = "".join(
        f"(RolloutManager pid=5) [2026-01-01 00:00:0{n}] r.py:1 - perf {n}: "
        f"{{'rollout/response_len/mean': {100 + n}.0, 'rollout/truncated_ratio': 0.5}}\n"
        f"(Actor pid=6) d.py:2 - rollout {n}: {{'rollout/raw_reward': 0.{n}}}\n"
        f"(Actor pid=6) m.py:3 - step {n}: {{'train/grad_norm': 1.5, 'train/ppo_kl': 0.0}}\n"
        for n in range(4)
    )
    run = read(write(tmp_path / "log", text))
    assert run.framework == "slime"
    assert [step for step, _ in run.rows] == [0, 1, 2, 3]
    assert run.rows[3][1] == {
        "rollout/response_len/mean": 103.0, "rollout/truncated_ratio": 0.5,
        "rollout/raw_reward": 0.3, "train/grad_norm": 1.5, "train/ppo_kl": 0.0,
    }  # fmt: skip


def test_prime_rl_s_two_writers_are_one_run_and_no_restart(tmp_path):
    line = "16:43:0{n} SUCCESS Step {n} | Time: 5.23s | "
    text = ""
    for n in range(6):
        text += line.format(n=n) + f"Reward: 0.{n} | Seq. Length: 142.7 tokens/sample\n"
        if n:
            text += line.format(n=n - 1) + "Loss: 0.01 | Entropy: 0.3 | Grad. Norm: 0.25\n"
    run = read(write(tmp_path / "log", text))
    assert run.framework == "prime_rl"
    assert [step for step, _ in run.rows] == list(range(6))
    assert run.rows[2][1] == {
        "reward/all/mean": 0.2, "seq_len/all/mean": 142.7, "loss/mean": 0.01,
        "entropy/all/mean": 0.3, "optim/grad_norm": 0.25,
    }  # fmt: skip


def test_the_phases_of_prime_rl_s_step_boundary(tmp_path):
    """The line of its pull request 2608, in loguru's form, beside the one of the step."""
    text = ""
    for n in range(3):
        text += f"16:43:0{n} SUCCESS Step {n} | Time: 5.23s | Reward: 0.5\n"
        text += (
            f"16:43:0{n}    INFO Step {n} phase breakdown: save_rollouts=9.{n}0s, wandb_log=0.05s\n"
        )
    run = read(write(tmp_path / "log", text))
    assert run.framework == "prime_rl"
    assert [step for step, _ in run.rows] == [0, 1, 2]
    assert run.rows[2][1] == {
        "reward/all/mean": 0.5, "time/save_rollouts": 9.2, "time/wandb_log": 0.05,
    }  # fmt: skip
    assert load("prime_rl").find("time/save_rollouts") == Native(
        "dfx_stage_seconds", {"stage": "save_rollouts"}
    )


def test_times_and_memory_that_lightrft_prints(tmp_path):
    text = "MEMORY STATUS: Finished init_model_context, DRIVER_USED=9.0 GB, ALLOCATED=8.25 GB\n"
    for n in range(3):
        text += f"***Rollout engine generation time (global max): 4{n}.5000s\n"
        text += "MEMORY STATUS: after offload_model, DRIVER_USED=41.5 GB, ALLOCATED=1.25 GB\n"
        text += f"Finished sglang wakeup, TIMECOST 0.{n}1\nTIMECOST of something else\n"
        text += f"PPO Train TIMECOST 9{n}.25\n"
    run = read(write(tmp_path / "log", text + "Finished sglang wakeup, TIMECOST 1.0\n"))
    assert run.framework == "lightrft"
    assert [step for step, _ in run.rows] == [0, 1, 2]
    assert run.rows[2][1] == {
        "PPO Train TIMECOST": 92.25,
        "Rollout engine generation time (global max)": 42.5,
        "Finished sglang wakeup, TIMECOST": 0.21,
        "MEMORY STATUS: after offload_model, DRIVER_USED": 41.5,
        "MEMORY STATUS: after offload_model, ALLOCATED": 1.25,
    }
    found = [load("lightrft").find(key) for key in run.rows[2][1]]
    assert {(n.metric, *sorted(n.labels.values()), n.scale) for n in found if n} == {
        ("dfx_stage_seconds", "actor_update", 1.0),
        ("dfx_stage_seconds", "rollout", 1.0),
        ("dfx_stage_seconds", "offload", 1.0),
        ("dfx_gpu_mem_phase_bytes", "after offload_model", "driver_used", 1e9),
        ("dfx_gpu_mem_phase_bytes", "after offload_model", "allocated", 1e9),
    }
    assert "Finished init_model_context" in str(run.rows[0][1])


# -------------------------------------------------------------------------------------- notebooks


TABLE = [("Step", "Training Loss", "reward", "completions / mean_length", "kl")]
TABLE += [
    (str(i), "0.100000", f"0.{i}", "120.5", "No Log" if i == 2 else "0.01") for i in (1, 2, 3)
]
OF_TABLE = [
    (i, {"loss": 0.1, "reward": i / 10, "completions/mean_length": 120.5}
        | ({} if i == 2 else {"kl": 0.01}))
    for i in (1, 2, 3)
]  # fmt: skip


def notebook(*outputs: dict) -> str:
    cells = [{"cell_type": "markdown", "source": ["text"]}]
    cells += [{"cell_type": "code", "source": [], "outputs": [output]} for output in outputs]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4})


def html_table() -> list[str]:
    rows = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in TABLE]
    return ["<div><table border='1'><thead>", *rows[:1], "</thead><tbody>", *rows[1:], "</tbody>"]


def test_the_table_of_the_trainer_in_a_notebook(tmp_path):
    output = {
        "output_type": "display_data",
        "data": {"text/html": html_table(), "text/plain": ["<x>"]},
    }
    run = read(write(tmp_path / "train.ipynb", notebook(output)))
    assert (run.framework, run.rows) == ("trl", OF_TABLE)


@pytest.mark.parametrize("between", [" | ", "\t", "   "])
def test_a_text_table_in_a_notebook_or_pasted(tmp_path, between):
    text = "\n".join(between.join(row) for row in [TABLE[0], ("--",) * 5, *TABLE[1:]]) + "\n"
    cell = {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
    assert read(write(tmp_path / "n.ipynb", notebook(cell))).rows == OF_TABLE
    assert read(write(tmp_path / "pasted.txt", f"I saw this:\n\n{text}\nWhy?\n")).rows == OF_TABLE


def test_cells_that_train_are_runs_of_their_own(tmp_path):
    printed = {"output_type": "stream", "text": [report(1) + "\n", report(2) + "\n"]}
    table = {"output_type": "display_data", "data": {"text/html": "".join(html_table())}}
    logs = open_logs(write(tmp_path / "n.ipynb", notebook(printed, table)))
    assert [(log.name, len(list(log.rows()))) for log in logs] == [("cell 2", 2), ("cell 3", 3)]


def test_a_truncated_notebook_is_reported(tmp_path):
    with pytest.raises(UnreadableLogError, match="is it complete"):
        read(write(tmp_path / "n.ipynb", notebook()[:-5]))


# ------------------------------------------------------------------------------------ CSV exports


def test_a_wandb_export_holds_several_runs(tmp_path):
    header = ["Step"]
    for run in ("run1", "a - b"):
        for key in ("train/reward", "train/kl"):
            header += [f"{run} - {key}", f"{run} - {key}__MIN", f"{run} - {key}__MAX"]
        header += [f"{run} - _step"]
    cells = [["1", *"123456", "9", *"abcdef", ""], ["2", *[""] * 7, *"223344", "2"]]
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in (header, *cells))
    first, second = open_logs(write(tmp_path / "wandb_export.csv", text))
    assert (first.name, list(first.rows())) == ("run1", [(1, {"reward": 1.0, "kl": 4.0})])
    assert (second.name, list(second.rows())[-1]) == ("a - b", (2, {"reward": 2.0, "kl": 3.0}))
    assert first.framework == "trl"


def test_semicolons_and_decimal_commas(tmp_path):
    run = read(write(tmp_path / "m.csv", "step;reward;kl\n1;0,5;1,5e-3\n2;0,75;2\n"))
    assert run.rows == [(1, {"reward": 0.5, "kl": 1.5e-3}), (2, {"reward": 0.75, "kl": 2.0})]


def test_a_table_without_a_header_is_reported_and_can_be_mapped(tmp_path):
    path = write(tmp_path / "m.csv", "1,0.5,0.1\n2,0.75,0.2\n")
    with pytest.raises(NotALogError, match=r"no header: name its columns .*--map reward=2"):
        read(path)
    named = read(path, key_map=parse(["step=1", "reward=2", "ref_kl=3"]))
    assert named.rows == [
        (1, {"signal/reward": 0.5, "signal/ref_kl": 0.1}),
        (2, {"signal/reward": 0.75, "signal/ref_kl": 0.2}),
    ]
    assert "no header: columns are called 1, 2, ..." in named.warnings


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks(tmp_path, encoding):
    path = write(tmp_path / "m.csv", "step,reward,kl\n1,0.5,0.1\n", encoding)
    assert read(path).rows == [(1, {"reward": 0.5, "kl": 0.1})]


def test_mlflow_s_table_of_one_line_for_each_value(tmp_path):
    text = "run_id,key,value,step,timestamp\n"
    for run in "ab":
        for key in ("reward", "kl"):
            text += "".join(f"{run}1,{key},0.{step},{step},17{step}\n" for step in range(3))
    first, second = open_logs(write(tmp_path / "metrics.csv", text))
    wanted = [(step, {"reward": step / 10, "kl": step / 10}) for step in range(3)]
    assert (first.name, list(first.rows())) == ("a1", wanted)
    assert (second.name, list(second.rows())) == ("b1", wanted)


def test_mlflow_s_folder(tmp_path):
    (tmp_path / "metrics" / "train").mkdir(parents=True)
    (tmp_path / "meta.yaml").touch()
    for key in ("reward", "train/kl"):
        values = "".join(f"{1700 + step} 0.{step} {step}\n" for step in range(3))
        write(tmp_path / "metrics" / key, values + "half")
    run = read(tmp_path)
    assert run.rows == [(step, {"reward": step / 10, "kl": step / 10}) for step in range(3)]
    assert any("timestamp value step" in line for line in run.warnings)


def test_wandb_history_counts_by_the_trainer_s_step_not_its_own_calls(tmp_path):
    text = "".join(
        json.dumps({"_step": 3 * i, "train/global_step": i, "train/reward": 0.5, "train/kl": 0.1})
        + "\n" + json.dumps({"_step": 3 * i + 1, "eval/x": 1.0}) + "\n"
        for i in range(1, 40)
    )  # fmt: skip
    run = read(write(tmp_path / "history.jsonl", text))
    assert [step for step, _ in run.rows] == list(range(1, 40))
    assert run.rows[0][1] == {"reward": 0.5, "kl": 0.1, "eval/x": 1.0}


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    path = tmp_path / "0000.parquet"
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(UnreadableLogError, match=r"pip install 'dfx-agent\[parquet\]'"):
        read(path)


# --------------------------------------------------------------------------------------- storage


def test_zstd_without_a_reader_says_what_to_do(tmp_path, monkeypatch):
    for name in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    path = tmp_path / "m.csv.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(UnreadableLogError, match="zstd -d"):
        read(path)


def test_the_readable_part_of_a_trainer_state_that_is_cut(tmp_path):
    state = json.dumps({"log_history": [{"step": i, "kl": 0.5, "reward": 1} for i in range(99)]})
    for cut in (len(state) - 2, len(state) - 30, 1000):
        run = read(write(tmp_path / "trainer_state.json", state[:cut]))
        assert run.rows == [(i, {"kl": 0.5, "reward": 1.0}) for i in range(len(run.rows))]
        assert len(run.rows) > 20
        assert any("cut off" in line for line in run.warnings)


def test_a_line_beyond_the_limit_is_skipped_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_CHARS", 1000)
    good = '{"step": 1, "kl": 0.5, "reward": 1}\n'
    run = read(write(tmp_path / "m.jsonl", good + "x" * 5000 + "\n" + good.replace("1,", "2,", 1)))
    assert [step for step, _ in run.rows] == [1, 2]
    assert any("longer than" in line for line in run.warnings)


# ------------------------------------------------------------------------------------- many keys


def test_50_000_columns_are_cut_to_the_limit_and_reported(tmp_path):
    names = ["reward", "kl", *(f"layer_{i}" for i in range(50_000)), "step"]
    text = ",".join(names) + "\n" + (",".join(["0.5"] * 50_002 + ["7"]) + "\n")
    run = read(write(tmp_path / "m.csv", text))
    ((step, values),) = run.rows
    assert (step, values["signal/reward"], len(values)) == (7, 0.5, MAX_KEYS)
    assert any("50,003 columns" in line for line in run.warnings)


def test_120_000_keys_over_a_run_are_cut_to_the_limit_and_reported(tmp_path):
    text = "".join(
        json.dumps({"step": i, "kl": 0.5, "reward": 1} | {f"k{i}/{j}": j for j in range(3000)})
        + "\n"
        for i in range(40)
    )
    run = read(write(tmp_path / "m.jsonl", text))
    assert len({key for _, values in run.rows for key in values}) == MAX_KEYS
    assert all(values["kl"] == 0.5 for _, values in run.rows)
    reported = next(line for line in run.warnings if "beyond 5,000 keys" in line)
    assert "(115,001 more such)" in reported


# --------------------------------------------------------------------------------------- --map


def test_a_key_that_the_user_names_wins_over_the_framework_s(tmp_path):
    text = '{"n": 3, "critic/score/mean": 1, "actor/entropy": 2, "my/acc": 0.5}\n'
    run = read(write(tmp_path / "m.jsonl", text), key_map=parse(["step=n", "reward=my/acc"]))
    assert run.rows == [(3, {"signal/reward": 0.5, "actor/entropy": 2.0})]
    assert run.warnings == ["critic/score/mean is left out: --map names 'my/acc' for it"]


@pytest.mark.parametrize("word", ["reward", "reward=", "rewards=x", "torch/lr=x"])
def test_a_map_that_says_nothing_is_wrong_use(word):
    with pytest.raises(ValueError, match="--map"):
        parse([word])


@pytest.mark.parametrize(
    "text", ["# Read me\n\nA, b and c.\n", '{\n "a": 1\n}\n', "x = 1\n", "[2026-01-01] started\n"]
)
def test_a_file_that_is_no_log_differs_from_a_broken_log(tmp_path, text):
    with pytest.raises(NotALogError):
        read(write(tmp_path / "file.txt", text))
    with pytest.raises(UnreadableLogError):
        read(write(tmp_path / "file.txt", text), "trl")


def test_a_gzip_of_console_lines(tmp_path):
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress("".join(report(i) + "\n" for i in range(9)).encode()))
    assert len(read(path).rows) == 9
