import subprocess
import sys

import pytest

from dfx_agent.commands.demo.faults import (
    GRAMMAR,
    STAGES,
    Fault,
    FaultError,
    check,
    parse,
    straggler_note,
)
from dfx_agent.commands.demo.trainer import TIMERS


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("straggler:2:1.5", Fault("straggler", rank=2, factor=1.5)),
        ("tokens_imbalance", Fault("tokens_imbalance")),
        ("divergence", Fault("divergence", step=10)),
        ("divergence:25", Fault("divergence", step=25)),
        ("misalign:7", Fault("misalign", step=7)),
        ("host_leak:0.5", Fault("host_leak", mib_per_step=0.5)),
        ("hang:1:weight_sync", Fault("hang", rank=1, stage="weight_sync", step=10)),
        ("hang:1:backward:3", Fault("hang", rank=1, stage="backward", step=3)),
        ("crash:0:2", Fault("crash", rank=0, step=2)),
        ("rollout_abort:1", Fault("rollout_abort", ratio=1.0)),
    ],
)
def test_parse(spec, expected):
    assert parse(spec) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "no such fault"),
        ("stragler:1:2", "choose from straggler:RANK:FACTOR, tokens_imbalance,"),
        ("straggler:1", "expected straggler:RANK:FACTOR"),
        ("tokens_imbalance:1", "expected tokens_imbalance"),
        ("nan:1:2", r"expected nan\[:STEP\]"),
        ("straggler:-1:2", "RANK must be a whole number from 0, not '-1'"),
        ("straggler:1:0.5", "FACTOR must be a number from 1"),
        ("straggler:1:inf", "FACTOR must be a number from 1"),
        ("hang:1:sleeping", "STAGE must be one of rollout, reward, .*not 'sleeping'"),
        ("divergence:0", "STEP must be a whole number from 1"),
        ("divergence:", "STEP must be a whole number from 1, not ''"),
        ("host_leak:nan", "MIB_PER_STEP must be a number above 0"),
        ("rollout_abort:1.5", "RATIO must be a number above 0, at most 1"),
    ],
)
def test_a_wrong_spec_is_reported_in_one_line(spec, message):
    with pytest.raises(FaultError, match=message) as caught:
        parse(spec)
    assert str(caught.value).startswith(f"--fault {spec}: ")
    assert "\n" not in str(caught.value)


def test_stages_to_hang_in_are_those_of_the_trainer():
    assert set(STAGES) == {*TIMERS, "forward", "backward", "optimizer"}


@pytest.mark.parametrize("spec", ["straggler:4:2", "hang:7:rollout", "crash:4"])
def test_a_rank_that_does_not_exist(spec):
    with pytest.raises(FaultError, match=r"there is no rank \d in a run of 4"):
        check([parse(spec)], num_ranks=4)


@pytest.mark.parametrize("spec", ["tokens_imbalance", "straggler:0:1.5"])
def test_what_compares_ranks_needs_two_of_them(spec):
    with pytest.raises(FaultError, match="needs at least 2 ranks"):
        check([parse(spec)], num_ranks=1)


@pytest.mark.parametrize(
    ("spec", "num_ranks", "num_cpus", "note"),
    [
        ("straggler:2:1.5", 4, 4, ""),
        ("nan", 4, 2, ""),
        ("straggler:2:1.5", 4, 2, "4 ranks share 2 CPUs: it takes 12 to 45 steps until the"),
        ("straggler:2:1.3", 4, 1, "4 ranks share 1 CPU: it takes 12 to 45 steps until the"),
        ("straggler:2:1.2", 4, 2, "4 ranks share 2 CPUs: a straggler of 1.2 may not be found; use"),
    ],
)
def test_where_ranks_share_cpus_the_demo_says_what_to_expect(spec, num_ranks, num_cpus, note):
    found = straggler_note([parse(spec)], num_ranks, num_cpus)
    assert found.startswith(note)
    assert bool(found) == bool(note)


def test_grammar_names_every_kind_once():
    assert [usage.split(":")[0].split("[")[0] for usage in GRAMMAR.values()] == list(GRAMMAR)


def test_all_ranks_of_a_run_may_fail():
    check([parse("straggler:3:2"), parse("tokens_imbalance"), parse("nan")], num_ranks=4)


def test_faults_are_known_without_torch():
    script = "import sys; import dfx_agent.commands.demo.faults; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
