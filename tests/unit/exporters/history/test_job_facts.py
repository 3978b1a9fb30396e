"""What is stored about a job's surroundings: arguments, variables, packages; no secrets."""

import pytest

from dfx_agent.exporters.history.job_facts import arguments, describe
from dfx_agent.snapshot import AgentRow, DeviceRow, RankRow, RunRow, TimeSplit

AGENT = AgentRow(
    "0.1", 1, "n", 50.0, 1, 0.0, 1, 5, 0, 0, 0, None, (),
    devices=tuple(DeviceRow(f"nvidia:{i}", None, None, "nvidia", "H200") for i in range(2)),
)  # fmt: skip


@pytest.fixture
def facts_of(tmp_path):
    def read(command=(), environment=None, maps=""):
        process = tmp_path / "7"
        process.mkdir(exist_ok=True)
        (process / "cmdline").write_text("\0".join(command))
        pairs = (environment or {}).items()
        (process / "environ").write_text("\0".join(f"{k}={v}" for k, v in pairs))
        (process / "maps").write_text(maps)
        row = RankRow(
            role="trainer", rank="0", local_rank=0, world_size=2, node="n", pid=7, attempt=0,
            state="live", begin_seconds=60.0, last_event_seconds=None, step=None,
            step_begin_seconds=None, inflight=(), totals=TimeSplit(), current=TimeSplit(),
            last=None, tokens_total={}, queue_depth={}, policy_version=None, scalars=(), stamps=(),
            num_records=5, num_lost_records=0, num_late_records=0, num_guest_drops=0,
        )  # fmt: skip
        facts = describe(RunRow("r", "trl", 0, 60.0, (row,), (), ()), AGENT, str(tmp_path))
        return {(fact.kind, fact.key): fact.value for fact in facts}

    return read


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["python", "-u", "train.py", "--lr", "0.1"], [("program", "train.py"), ("--lr", "0.1")]),
        (["python", "-m", "pkg.train", "--fp16"], [("program", "pkg.train"), ("--fp16", "yes")]),
        (["python", "t.py", "--bias", "-0.5"], [("program", "t.py"), ("--bias", "-0.5")]),
        (["python", "t.py", "a.b=1", "+c=2"], [("program", "t.py"), ("a.b", "1"), ("+c", "2")]),
        (["python", "t.py", "--x=1", "--x=2"], [("program", "t.py"), ("--x", "1 2")]),
        (["python", "t.py", "--flag", "a.b=1"],
         [("program", "t.py"), ("--flag", "yes"), ("a.b", "1")]),
        ([""], []),
    ],
)  # fmt: skip
def test_arguments_of_a_command_line(words, found):
    assert arguments(words) == found


def test_secrets_are_hidden_and_tokens_of_text_are_not(facts_of):
    facts = facts_of(
        ["python", "t.py", "--hf_token", "abc", "--max_tokens", "512", "--url", "http://u:p@h/x"],
        {"VLLM_API_KEY": "abc", "NCCL_DEBUG": "INFO", "HOME": "/root", "RAY_ADDRESS": "1.2.3.4"},
    )
    config = {key: value for (kind, key), value in facts.items() if kind == "config"}
    assert config == {
        "program": "t.py", "--hf_token": "(hidden)", "--max_tokens": "512", "--url": "http://h/x",
        "$VLLM_API_KEY": "(hidden)", "$NCCL_DEBUG": "INFO",
    }  # fmt: skip


def test_packages_are_those_of_the_folders_that_the_process_loads(facts_of, tmp_path):
    site = "/opt/env/lib/python3.12/site-packages"
    folder = tmp_path / "7" / "root" / site[1:]
    for name in ("vllm-0.18.0.dist-info", "Flash_Attn-2.8.dist-info", "torch"):
        (folder / name).mkdir(parents=True)
    facts = facts_of(maps=f"7f00-7f01 r-xp 0 08:01 1 {site}/torch/lib/libtorch.so\n")
    packages = {key: value for (kind, key), value in facts.items() if kind == "package"}
    del packages["dfx-agent"]
    assert packages == {"python": "3.12", "vllm": "0.18.0", "flash-attn": "2.8"}


def test_devices_are_counted_by_model(facts_of):
    facts = facts_of()
    assert facts["device", "num H200"] == "2"
    assert facts["package", "dfx-agent"] == "0.1"
