"""Logs as frameworks, trackers and crashes write them."""

import contextlib
import gzip
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.node.logs.reader import READERS, read
from dfx_agent.node.logs.run import UnreadableLogError
from dfx_agent.node.logs.values import number, step_of


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5", 1.5),
        ("np.float64(-3.3e-05)", -3.3e-05),
        ("numpy.int64(7)", 7.0),
        ("tensor(0.25, device='cuda:0')", 0.25),
        ("inf", math.inf),
        ("np.float64(-inf)", -math.inf),
        (3, 3.0),
        (10**400, math.inf),
    ],
)
def test_a_number_is_read_however_it_is_spelled(text, value):
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "x", "np.float64(", "np.float6", "1_000", True, None, [1]])
def test_what_is_no_number_is_missing(text):
    assert number(text) is None


@pytest.mark.parametrize(("value", "step"), [("12.0", 12), (3, 3), ("nan", None), (1.5, None)])
def test_a_step_is_whole(value, step):
    assert step_of(value) == step


# ------------------------------------------------------------------------------------------- verl


def test_verl_console_lines_are_read_behind_the_prefix_of_ray(tmp_path):
    log = write(
        tmp_path / "train.log",
        "Training Progress:   0%|          | 0/10\n"
        "step:0 - val-core/gsm8k/acc/mean@1:0.5\n"
        "\x1b[36m(TaskRunner pid=4242)\x1b[0m step:1 - actor/entropy:np.float64(0.25) - "
        "critic/score/mean:-0.5 - note:none\n"
        "the next step:1 is not a report\n"
        "(TaskRunner pid=4242) step:2 - actor/entropy:nan\n",
    )
    run = read(log)
    assert run.framework == "verl"
    assert [step for step, _ in run.rows] == [0, 1, 2]
    assert run.rows[1][1] == {"actor/entropy": 0.25, "critic/score/mean": -0.5}
    assert math.isnan(run.rows[2][1]["actor/entropy"])


def test_a_line_cut_at_4096_bytes_loses_its_last_value(tmp_path):
    """ "0.0000123" cut to "0.00" would still be a number, and a wrong one."""
    head = "step:1 - actor/entropy:0.25 - " + " - ".join(f"my/{i:04}:0.125" for i in range(210))
    cut = f"{head} - {'v' * (4096 - len(head) - 8)}:0.12"
    assert len(cut) == 4096
    run = read(write(tmp_path / "log", f"{cut}\nstep:2 - actor/entropy:0.5\n"))
    values = run.rows[0][1]
    assert values["actor/entropy"] == 0.25
    assert set(values.values()) == {0.25, 0.125}
    assert len(values) == cut.count(" - ") - 1
    assert "the line of step 1" in run.warnings[0]


def test_reports_of_one_step_that_come_in_parts_are_one_row(tmp_path):
    run = read(
        write(
            tmp_path / "log",
            "step:5 - actor/entropy:0.25\nstep:5 - val-core/x:1\nstep:4 - actor/entropy:0.5\n",
        )
    )
    assert run.rows == [
        (5, {"actor/entropy": 0.25, "val-core/x": 1.0}),
        (4, {"actor/entropy": 0.5}),
    ]


# ------------------------------------------------------------------------------------ CSV and JSON


def test_csv_with_slashes_flattened_gets_the_framework_s_spelling(tmp_path):
    table = (
        "step,actor_entropy,critic_score_mean,response_length_clip_ratio,timing_s_update_actor,"
        "actor_prefix_ppo_kl\n1,0.5,,0.25,3.5,7\n\n2,nan,0.5,inf,,\n"
    )
    run = read(write(tmp_path / "metrics.csv", table))
    assert run.framework == "verl"
    assert run.rows == [
        (1, {
            "actor/entropy": 0.5, "response_length/clip_ratio": 0.25, "timing_s/update_actor": 3.5,
            "actor_prefix_ppo_kl": 7.0,
        }),
        (2, {"critic/score/mean": 0.5, "response_length/clip_ratio": math.inf}),
    ]  # fmt: skip


def test_gzip_is_recognised_by_content(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(gzip.compress(b"step,actor/entropy\n4,0.5\n"))
    assert read(path).rows == [(4, {"actor/entropy": 0.5})]


def test_csv_without_a_step_counts_its_rows_and_says_so(tmp_path):
    run = read(write(tmp_path / "m.csv", "kl,reward\n0.1,1\n0.2,2\n"))
    assert [step for step, _ in run.rows] == [0, 1]
    assert run.framework == "trl"
    assert "records without a step: counted from 0" in run.warnings


def test_trainer_state_joins_the_entries_of_a_step(tmp_path):
    history = [
        {"step": 5, "kl": 0.1, "reward": 1, "is_last": False},
        {"step": 5, "eval_reward": 0.5},
        {"kl": 3},
        {"step": 10, "kl": math.nan},
    ]
    for indent in (None, 2):
        state = json.dumps({"log_history": history}, indent=indent)
        run = read(write(tmp_path / "trainer_state.json", state))
        assert run.framework == "trl"
        assert run.rows[0] == (5, {"kl": 0.1, "reward": 1.0, "eval_reward": 0.5})
        assert math.isnan(run.rows[1][1]["kl"])
        assert run.warnings == ["record 2 has no step: left out"]


def test_json_lines_of_verl_s_file_logger_and_of_roll(tmp_path):
    verl = '{"step": 3, "data": {"actor/entropy": 0.5, "training/global_step": 3}}\n'
    run = read(write(tmp_path / "m.jsonl", verl))
    assert (run.framework, run.rows) == ("verl", [(3, {"actor/entropy": 0.5})])
    roll = '{"system/step": 7, "actor/approxkl@mean": 0.5, "critic": {"entropy": {"mean": 2}}}\n'
    run = read(write(tmp_path / "m.jsonl", roll))
    assert run.framework == "roll"
    assert run.rows == [(7, {"actor/approxkl": 0.5, "critic/entropy/mean": 2.0})]


def test_json_lines_survive_what_a_crash_leaves(tmp_path):
    text = '{"step": 1, "kl": 0.5, "reward": 1}\n\n[1]\n{"step": 2, "kl": 0.'
    run = read(write(tmp_path / "m.jsonl", text))
    assert run.rows == [(1, {"kl": 0.5, "reward": 1.0})]
    assert run.warnings == ["line 3 is not a JSON object: left out (1 more such)"]


def test_trackers_prefix_of_trl_is_taken_off(tmp_path):
    text = '{"train/global_step": 4, "train/kl": 0.5, "train/reward": 1, "train/grad_norm": 2}\n'
    run = read(write(tmp_path / "m.jsonl", text))
    assert (run.framework, run.rows) == ("trl", [(4, {"kl": 0.5, "reward": 1.0, "grad_norm": 2.0})])


# ------------------------------------------------------------------------------------------ errors


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(UnreadableLogError, match=r"cannot read .*: No such file"):
        read(tmp_path / "gone.csv")


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "step,actor/entropy\n"])
def test_a_file_without_a_report_is_an_error(tmp_path, text):
    with pytest.raises(UnreadableLogError):
        read(write(tmp_path / "file", text))


def test_of_a_gzip_that_is_cut_the_readable_part_is_read(tmp_path):
    path = tmp_path / "m.csv.gz"
    rows = "".join(f"{i},{i % 7}.5\n" for i in range(1, 5001))
    path.write_bytes(gzip.compress(f"step,kl\n{rows}".encode())[:-2000])
    run = read(path)
    assert 100 < len(run.rows) < 5000
    assert run.rows == [(i, {"kl": i % 7 + 0.5}) for i in range(1, len(run.rows) + 1)]
    assert "cut off or damaged: read up to there" in run.warnings[0]


def test_unknown_keys_are_read_and_said(tmp_path):
    run = read(write(tmp_path / "m.csv", "step,foo\n1,2\n"))
    assert (run.framework, run.rows) == ("", [(1, {"foo": 2.0})])
    assert "no key is known" in run.warnings[-1]


def test_names_of_a_pipeline_say_nothing_of_the_framework(tmp_path):
    name = "pipeline/stale/ratio"
    run = read(write(tmp_path / "m.csv", f"step,{name},foo\n1,2,3\n"))
    assert (run.framework, run.rows) == ("", [(1, {name: 2.0, "foo": 3.0})])
    assert run.warnings == []


def test_many_of_a_kind_are_one_line_with_their_number(tmp_path):
    run = read(write(tmp_path / "m.jsonl", '{"step": 1, "kl": 1}\n' + "x\n" * 500))
    assert run.warnings == ["line 2 is not a JSON object: left out (499 more such)"]


@given(st.binary(max_size=400), st.sampled_from(sorted(READERS)))
def test_any_bytes_are_read_or_refused_in_any_format(tmp_path_factory, data, name):
    path = tmp_path_factory.mktemp("bytes") / "file"
    path.write_bytes(data)
    for format_name in ("auto", name):
        with contextlib.suppress(UnreadableLogError):
            assert read(path, format_name).rows
