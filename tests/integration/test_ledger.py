"""The shape ledger from a real training to `diagnose` and /metrics."""

import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import DEMO, DFX_AGENT, TORCHRUN, demo_environment, serving, started, until

JOB = [*TORCHRUN, "2", *DEMO, "--group-size", "4", "--validate-every", "0", "--steps"]


def data_verdict(agent):
    found = [v for run in agent.snapshot()["runs"] for v in run["verdicts"]]
    return next((v for v in found if v["kind"] == "data"), {"state": "none", "step": None})


def ledger_samples(agent):
    families = text_string_to_metric_families(agent.get("/metrics"))
    return [s for f in families for s in f.samples if s.name.startswith("dfx_ledger_")]


def test_a_sound_training_has_no_mismatch(dfx_dir, tmp_path, free_port):
    command = [*JOB, "45"]
    with (
        serving(tmp_path, free_port()) as agent,
        started(command, tmp_path, demo_environment(DFX_LEDGER_EVERY_STEP="1")) as job,
    ):
        until(lambda: (data_verdict(agent)["step"] or 0) >= 40, "40 steps judged", 180)
        verdict = data_verdict(agent)
        assert verdict["state"] == "clear", verdict
        assert "rollout to reward to actor_update" in verdict["summary"]
        (run,) = agent.snapshot()["runs"]
        assert run["ledger"]["mismatches"] == []
        assert run["ledger"]["num_judged_steps"] >= 39
        assert all(rank["num_guest_drops"] == 0 for rank in run["ranks"])
        seen = ledger_samples(agent)
        at = {(s.labels["rank"], s.labels["boundary"]) for s in seen if "rank" in s.labels}
        assert at == {(r, b) for r in "01" for b in ("rollout", "reward", "actor_update")}
        values = {(s.name, s.labels.get("stat", "")): s.value for s in seen}
        assert values["dfx_ledger_samples", ""] == 8
        assert values["dfx_ledger_group_samples", "max"] == 4
        assert 0 < values["dfx_ledger_mask_ratio", ""] <= 1
        assert values["dfx_ledger_unread_columns_total", ""] == 0
        assert values["dfx_ledger_nonfinite_samples_total", ""] == 0
        assert job.wait(60) == 0, job.errors


def test_misaligned_rewards_are_named_by_diagnose(dfx_dir, tmp_path, free_port):
    command = [*JOB, "1000", "--fault", "misalign:6"]
    with (
        serving(tmp_path, free_port()) as agent,
        started(command, tmp_path, demo_environment(DFX_LEDGER_EVERY_STEP="1")),
    ):
        until(lambda: data_verdict(agent)["state"] == "found", "the fault is found", 120)
        words = ["diagnose", "--url", agent.url]
        reported = subprocess.run(
            [*DFX_AGENT, *words], check=False, capture_output=True, text=True, timeout=60
        )
        result = " ".join(reported.stdout.split())
        assert reported.returncode == 1, reported
        assert "reward to actor_update: rewards belong to other samples" in result
        assert "cause: moved; to blame: 0; stage: actor_update" in result
        mismatches = [s for s in ledger_samples(agent) if "mismatches" in s.name]
        assert [s.labels["kind"] for s in mismatches] == ["moved"]
        assert 'kind="data",cause="moved",stage="actor_update",rank="0"' in agent.get("/metrics")


def test_of_short_steps_some_are_checked_and_the_rest_is_counted(dfx_dir, tmp_path, free_port):
    command = [*JOB, "1000", "--prompts-per-rank", "1"]
    env = demo_environment(DFX_LEDGER_EVERY_STEP="", DFX_MAX_OVERHEAD="")
    with serving(tmp_path, free_port()) as agent, started(command, tmp_path, env):

        def are_left_out() -> bool:
            counts = [s.value for s in ledger_samples(agent) if "left_out" in s.name]
            return bool(counts) and min(counts) >= 20

        until(are_left_out, "crossings of 20 steps are left out", 180)
        until(lambda: data_verdict(agent)["state"] == "clear", "others are compared", 120)
        (run,) = agent.snapshot()["runs"]
        assert run["ledger"]["mismatches"] == []
        seen = ledger_samples(agent)
        batches = [s.value for s in seen if s.name == "dfx_ledger_crossings_total"]
        left_out = [s.value for s in seen if s.name == "dfx_ledger_left_out_crossings_total"]
        assert all(some < every for some, every in zip(left_out, batches, strict=True))
        assert all(s.value > 0 for s in seen if s.name == "dfx_ledger_samples")
