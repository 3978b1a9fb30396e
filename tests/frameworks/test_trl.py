"""TRL as it is on PyPI: GRPOTrainer on two ranks, started with us, attached to and left alone."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from live_processes import (
    DFX_AGENT,
    TORCHRUN,
    LiveAgent,
    Started,
    job_environment,
    started,
    until,
    unused_port,
)
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("trl", reason="no trl; `make test-frameworks` installs it")

JOB = Path(__file__).resolve().parent / "jobs" / "trl_grpo.py"
RANKS = {"0", "1"}
STAGES = {
    "rollout", "reward", "old_logprob", "ref_logprob", "advantage", "actor_update", "forward",
    "backward", "optimizer",
}  # fmt: skip
SCALARS = {
    "dfx_actor_entropy_nats", "dfx_ref_kl_nats", "dfx_actor_grad_norm", "dfx_clip_fraction",
    "dfx_actor_loss", "dfx_learning_rate", "dfx_reward", "dfx_response_length_tokens",
}  # fmt: skip
STAGE_SECONDS = "dfx_rank_stage_active_seconds_total"
# what a report says about this machine, and not about the training
TIMES = {"step_time"}
pytestmark = pytest.mark.timeout(1200)
START_SECONDS = 600.0  # against a job that never comes up; says nothing about speed


class Training:
    """A TRL job and what it says about itself."""

    def __init__(self, launcher: Started, folder: Path) -> None:
        self.launcher = launcher
        self._history = folder / "history.jsonl"

    @property
    def pids(self) -> dict[str, int]:
        """Rank -> pid."""
        found = {}
        for process in self.launcher.descendants():
            with suppress(psutil.Error):
                rank = process.environ().get("RANK")
                if rank is not None:
                    found[rank] = process.pid
        return found

    def reports(self, num_reports: int) -> list[dict[str, Any]]:
        """The first reports of the training, as soon as they are there."""
        until(lambda: self._is_there(num_reports), f"{num_reports} reports", START_SECONDS)
        lines = self._history.read_text().splitlines()[:num_reports]
        rows = [json.loads(line) for line in lines]
        return [{key: row[key] for key in row if key not in TIMES} for row in rows]

    def changed(self) -> set[str]:
        """Functions that are not what they were at the start, of all ranks."""
        seen = len(self._told())
        for pid in self.pids.values():
            os.kill(pid, signal.SIGUSR2)
        until(lambda: len(self._told()) >= seen + len(RANKS), "all ranks tell what changed")
        return {name for line in self._told()[seen:] for name in line["changed"]}

    def num_reports(self) -> int:
        return len(self._history.read_text().splitlines()) if self._history.exists() else 0

    def _is_there(self, num_reports: int) -> bool:
        assert self.launcher.popen.poll() is None, self.launcher.errors
        return self.num_reports() >= num_reports

    def _told(self) -> list[dict[str, Any]]:
        lines = self.launcher.output.splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"rank"')]


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]

    def labels(self, name: str, label: str, **fixed: str) -> set[str]:
        """Values of ``label`` among the series of ``name`` that have the ``fixed`` labels."""
        return {
            sample.labels[label]
            for sample in self.samples
            if sample.name == name and fixed.items() <= sample.labels.items()
        }

    def value(self, name: str, **fixed: str) -> float:
        (found,) = (
            sample.value
            for sample in self.samples
            if sample.name == name and fixed.items() <= sample.labels.items()
        )
        return float(found)

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}


def command(folder: Path) -> list[str]:
    """A training on two ranks without an end."""
    options = ["--steps", "1000000", "--beta", "0.1", "--iterations", "2"]
    return [*TORCHRUN, str(len(RANKS)), str(JOB), "--output-dir", str(folder), *options]


@contextmanager
def listening(words: list[str], folder: Path, env: dict[str, str]) -> Iterator[LiveAgent]:
    port = unused_port()
    words = [part.format(listen=f"127.0.0.1:{port}") for part in words]
    with started([*DFX_AGENT, *words], folder, env) as process:
        agent = LiveAgent(process, port)
        agent.wait_until_ready()
        yield agent


def scrape_of_all(agent: LiveAgent) -> Metrics:
    """The first scrape in which both ranks have a whole step, all stages and all scalars."""

    def look() -> Metrics | None:
        metrics = Metrics(agent.get("/metrics"))
        series = {*SCALARS, "dfx_rank_step_seconds"}
        has_scalars = all(metrics.labels(name, "rank") >= RANKS for name in series)
        stages = (metrics.labels(STAGE_SECONDS, "stage", rank=rank) for rank in RANKS)
        return metrics if has_scalars and all(of_rank >= STAGES for of_rank in stages) else None

    return until(look, f"{sorted(SCALARS)} and {sorted(STAGES)} of both ranks", START_SECONDS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """A job that knows nothing of us."""
    folder = tmp_path_factory.mktemp("plain")
    env = job_environment()
    env.pop("DFX_DIR", None)
    with started(command(folder), folder, env) as launcher:
        yield Training(launcher, folder)


def test_job_under_run_has_stages_scalars_tokens_and_the_same_losses(
    plain: Training, tmp_path: Path, dfx_dir: Path
) -> None:
    words = ["run", "--listen", "{listen}", "--", *command(tmp_path)]
    with listening(words, tmp_path, job_environment()) as agent:
        observed = Training(agent.process, tmp_path)
        rows = observed.reports(6)
        metrics = scrape_of_all(agent)
    assert rows == plain.reports(6)
    for rank in RANKS:
        assert metrics.labels("dfx_rank_info", "role", rank=rank) == {"trainer"}
        assert metrics.labels("dfx_rank_tokens_total", "kind", rank=rank) == {"prompt", "response"}
        parts = {"log", "steps", "evaluation", "checkpoint", "update", "grpo"}
        of_rank = {"framework": "trl", "rank": rank}
        assert metrics.labels("dfx_adapter_active", "part", **of_rank) >= parts
        for part in ("log", "steps", "update", "grpo"):  # the others need not have come by now
            assert metrics.value("dfx_adapter_active", part=part, **of_rank) == 1
        assert metrics.value("dfx_guest_dropped_total", rank=rank) == 0
        boundary = {"rank": rank, "boundary": "rollout"}
        assert 0 < metrics.value("dfx_ledger_mask_ratio", **boundary) <= 1
        assert metrics.value("dfx_ledger_nonfinite_samples_total", **boundary) == 0
        # a step is counted once: two micro batches and one update in each
        updates = metrics.value("dfx_optimizer_steps_total", rank=rank)
        assert abs(metrics.value("dfx_step", rank=rank) - updates) <= 2
        assert abs(metrics.value("dfx_micro_batches_total", rank=rank) - 2 * updates) <= 2
    assert_scores_are_those_of_the_reward_function(metrics, tmp_path)
    assert "dfx_grad_norm" not in metrics.names  # it belongs to the actor, and TRL logs it


def assert_scores_are_those_of_the_reward_function(metrics: Metrics, folder: Path) -> None:
    """A rank counts its samples at the end of a step: the first batches of each, all or but one."""
    counted = {
        (sample.labels["source"], sample.labels["le"]): sample.value
        for sample in metrics.samples
        if sample.name == "dfx_sample_score_bucket"
    }
    batches = {
        rank: [
            json.loads(line) for line in (folder / f"rewards.{rank}.jsonl").read_text().splitlines()
        ]
        for rank in RANKS
    }
    prefixes = itertools.product(*(range(1, len(of_rank) + 1) for of_rank in batches.values()))
    candidates = []
    for numbers in prefixes:
        seen = [
            b for n, of_rank in zip(numbers, batches.values(), strict=True) for b in of_rank[:n]
        ]
        scores = [s for b in seen for s in zip(b["sources"], b["rewards"], strict=True)]
        candidates.append(
            {
                (source, edge): sum(1 for s, v in scores if s == source and v <= float(edge) + 1e-6)
                for source, edge in counted
            }
        )
    assert sum(n for (_, edge), n in counted.items() if edge == "+Inf") > 0
    assert counted in candidates


def test_attach_to_a_running_job_and_leave_it_as_it_was(
    plain: Training, tmp_path: Path, dfx_dir: Path
) -> None:
    plain.reports(1)
    assert plain.changed() == set()
    words = ["attach", "--pid", str(plain.pids["0"]), "--listen", "{listen}"]
    with listening(words, tmp_path, job_environment()) as agent:
        metrics = scrape_of_all(agent)
        assert {"Trainer.log", "Trainer.training_step", "GRPOTrainer._generate"} <= plain.changed()
        for rank in RANKS:
            assert metrics.value("dfx_guest_dropped_total", rank=rank) == 0
        agent.process.send(signal.SIGINT)
        assert agent.process.popen.wait(30) == 0, agent.process.errors
    until(lambda: not plain.changed(), "the job has its own functions again", 90)
    at_detach = plain.num_reports()
    until(lambda: plain.num_reports() > at_detach + 1, "the job goes on")


def test_one_process_without_a_launcher_evaluates_and_saves(tmp_path: Path, dfx_dir: Path) -> None:
    job = [sys.executable, str(JOB), "--output-dir", str(tmp_path), "--steps", "1000000"]
    words = ["run", "--listen", "{listen}", "--", *job, "--evaluate"]
    with listening(words, tmp_path, job_environment()) as agent:

        def look() -> bool:
            metrics = Metrics(agent.get("/metrics"))
            stages = metrics.labels(STAGE_SECONDS, "stage")
            is_complete = {"validation", "checkpoint", "rollout"} <= stages
            return is_complete and metrics.labels("dfx_rank_up", "role") == {"trainer"}

        until(look, "a trainer that has evaluated and saved", START_SECONDS)
