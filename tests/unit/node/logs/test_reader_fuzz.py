"""Foreign bytes: read, or refused in one line; never anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfx_agent.node.logs.reader import AUTO, READERS, open_logs
from dfx_agent.node.logs.run import UnreadableLogError

REAL = [
    b"{'loss': 0.1, 'grad_norm': nan, 'reward': np.float64(0.5), 'kl': '1e-3', 'epoch': 0.01}\n",
    b"(Actor pid=6, ip=10.0.0.1) x.py:3 - step 3: {'train/grad_norm': 1.5, 'a': {'b': [1, 2]}}\n",
    b"16:43:08 SUCCESS Step 5 | Time: 5.23s | Reward: 0.3498 | Seq. Length: 142.7 tokens/sample\n",
    b"step:12 - actor/entropy:0.31 - critic/score/mean:np.float64(0.4)\n",
    b"Step | Training Loss | reward | kl\n-- | -- | -- | --\n1 | 0.1 | 0.5 | No Log\n",
    b'Step,"r - train/reward","r - train/reward__MIN","q - kl"\n1,0.5,0.5,0.1\n',
    b"run_id,key,value,step,timestamp\na,reward,0.5,1,17\n",
    b"step;reward;kl\n1;0,5;1,5e-3\n",
    b'{"step": 1, "data": {"actor/entropy": 0.5}}\n{"_step": 2, "train/kl": 1e999}\n',
    json.dumps({"log_history": [{"step": 1, "kl": 0.5}, {"step": 2}], "x": 1}).encode(),
    json.dumps({"cells": [{"outputs": [{"data": {"text/html": "<table><tr><th>Step<th>reward<tr>"
        "<td>1<td>2</table>"}}, {"text": ["{'loss': 1, 'kl': 2}"]}]}], "nbformat": 4}).encode(),
    "step,reward\n1,2\n".encode("utf-16"),
    b"[2026-01-03 10:00:01] iter 12/500 | rew 0.33 \xc2\xb1 0.2 | kl 1.2e-3 | gnorm 0.5\n",
    b"level=info step=12 reward=0.3 kl=1e-3\nINFO:root:Step 13: mean reward: 0.5, kl: 0.01\n",
    b"step: 1\n  reward: 0.5\n  kl: 0.1\n---\n| ep_rew_mean | 12.3 |\n| iterations | 5 |\n",
    b"a:  1%|# | 3/99 [00:10<01:20, 1.1it/s, reward=0.5, kl=1]\r",
    b'{"reward": [0.1, 0.2], "kl": [1, 2]}', b'{"columns": ["a", "kl"], "data": [[1, 2], [3]]}',
    b'{"reward": {"0": 1, "1": 2}}', b'{"a": [{"step": 1, "rew": 0.5}, {"step": 2, "rew": 1}]}',
    b'{"phase": "eval", "step": 1, "reward": 0.5}\n{"message": "step=1 reward=0.5 kl=1"}\n',
    b"PAR1" + bytes(30), b"\x28\xb5\x2f\xfd" + bytes(9), b"\x1f\x8b\x08" + bytes(30),
    b"BZh9" + bytes(9),
]  # fmt: skip
DEEP = 100_000


def read_or_refuse(path, format_name):
    refused = ""
    try:
        read_all(path, format_name)
    except UnreadableLogError as error:
        refused = str(error)
    assert "\n" not in refused


def read_all(path, format_name):
    for log in open_logs(path, format_name):
        for step, values in log.rows():
            assert isinstance(step, int)
            assert all(isinstance(value, float | int) for value in values.values())
        assert len(log.warnings) <= 21


@pytest.mark.parametrize("name", [AUTO, *READERS])
@given(st.data())
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_changed_and_mixed_lines_are_read_or_refused(tmp_path, name, data):
    pieces = data.draw(st.lists(st.sampled_from(REAL) | st.binary(max_size=60), max_size=5))
    text = bytearray(b"".join(pieces))
    for _ in range(data.draw(st.integers(0, 4)) if text else 0):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "file"
    path.write_bytes(text[: data.draw(st.integers(0, len(text)))])
    read_or_refuse(path, name)


@pytest.mark.parametrize("name", [AUTO, *READERS])
@pytest.mark.parametrize(
    "data",
    [
        b'{"a":' * DEEP, b"{'a':" * DEEP, b"[" * DEEP, b'{"log_history": [' + b"[" * DEEP,
        b"{'loss': " + b"(" * DEEP, b'{"cells": ' + b"[" * DEEP,
        b"{'loss': " + b"-" * DEEP + b"1}\n",
        b'{"step": 1, "kl": ' + b"9" * DEEP + b"}\n", b"step,kl\n1," + b"9" * DEEP + b"\n",
        b"{'loss': " + b"9" * DEEP + b", 'kl': 1}\n", b"step:" + b"9" * DEEP + b" - kl:1\n",
        b"Step " + b"9" * DEEP + b" | Reward: 0.5\n", b"{'kl': 1, 'x': '" + b"(" * DEEP + b"'}\n",
        b"1" + b" | 1" * DEEP + b"\n", b"_" * DEEP + b",b\n1,2\n", b'step,"' + b"a\n" * DEEP,
        b"<table>" * DEEP, bytes(DEEP), b"a b c d " * (DEEP // 8), b"step " * (DEEP // 8) + b"1 |",
        b"a=1 " * (DEEP // 8) + b"reward=1", b"(" * 19_000 + b": 1, reward 2",
        b"a " * 9_000 + b"= 1\n", b"- " * 9_000 + b"| 1", b"1-" * 9_000 + b"=",
    ],
    ids=range(25),
)  # fmt: skip
@pytest.mark.timeout(120)
def test_depth_and_size_are_no_trouble(tmp_path, name, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    read_or_refuse(path, name)
