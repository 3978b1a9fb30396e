"""One catalogue, two evaluators: promtool and the agent agree on every alert at every step.

A step is a minute of promtool's time. Both read what /metrics says of the run; a series that is not
there any more is stale, as after a scrape.
"""

import csv
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.faults import FAULTS
from dfx_agent.alerting.evaluator import Evaluator, metrics_read
from dfx_agent.catalogue.alerts.promql import promql
from dfx_agent.commands.backtest import signal_rows
from dfx_agent.commands.backtest.episodes import STEP_CLOCKED
from dfx_agent.exporters.prometheus.exporter import run_samples
from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.node.logs.reader import read
from dfx_agent.snapshot import RunRow

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DFX_BENCH_DATA", ROOT / "tests" / "data"))
# keep counts steps here and seconds there: what is compared is whether the condition holds
ALERTS = [replace(alert, keep_steps=0, for_seconds=0) for alert in STEP_CLOCKED]
WANTED = metrics_read(ALERTS)
ONSET, NUM_STEPS = 40, 100

Verdicts = dict[int, set[int]]  # place in ALERTS -> steps at which it fires


def healthy() -> list[tuple[int, dict[str, float]]]:
    rng = random.Random(11)
    return [
        (
            step,
            {
                "policy_kl": 1e-3 * rng.lognormvariate(0, 0.2),
                "ref_kl": 0.02 * rng.lognormvariate(0, 0.1),
                "grad_norm": 0.4 * rng.lognormvariate(0, 0.15),
                "entropy": 0.3 * rng.lognormvariate(0, 0.08),
                "reward": rng.gauss(0.6, 0.03),
                "response_length": 800 * rng.lognormvariate(0, 0.06),
                "truncation": 0.02,
                "loss": rng.gauss(0, 0.01),
                "score_max": 1.0,
                "score_min": 0.0,
            },
        )
        for step in range(NUM_STEPS)
    ]


def faulty(fault) -> list[tuple[int, dict[str, float]]]:
    rows = healthy()
    for i, (_, values) in enumerate(rows[ONSET:]):
        fault(values, i)
    return rows


def broken(values: dict[str, float], i: int) -> None:
    """What no spike is: NaN, truncation of everything, one score for all, a family that is gone."""
    if i in {2, 3}:
        values["grad_norm"] = float("nan")
    if i == 12:
        values["loss"] = float("inf")
    if 20 <= i < 40:
        values["truncation"], values["reward"] = 0.95, 0.0
    if i >= 30:
        values["score_max"] = 0.0
    if i >= 45:
        del values["entropy"]


def without_signal() -> list[tuple[int, dict[str, float]]]:
    """Every sample scores the same from the first step on."""
    return [(step, {**values, "score_max": 0.0}) for step, values in healthy()[:30]]


def solved(values: dict[str, float], i: int) -> None:
    """Every sample has the best score of the run."""
    if i >= 10:
        values["score_min"] = 1.0


def drifted(values: dict[str, float], i: int) -> None:
    """The policy moves away from its reference, step by step."""
    values["ref_kl"] *= 1 + i


def collapsed() -> list[tuple[int, dict[str, float]]]:
    with (DATA / "INVENTORY.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["verdict"] == "BAD")
    return list(signal_rows(read(DATA / "runs" / f"{row['name']}.csv.gz")))


SCENES = {
    **{name: lambda fault=fault: faulty(fault) for name, fault in FAULTS.items()},
    "broken values": lambda: faulty(broken),
    "no signal": without_signal,
    "solved": lambda: faulty(solved),
    "reference KL": lambda: faulty(drifted),
    "nothing": healthy,
    "a real collapse": collapsed,
}


def states(rows):
    bank = SignalBank()
    return [bank.observe(step, values) for step, values in rows]


def scrapes(found):
    """What /metrics says after each step: (sample name, labels) -> value."""
    pages = []
    for state in found:
        run = RunRow("r", "verl", 0, 0.0, (), (), (), signals=state)
        samples = run_samples(run, WANTED)
        pages.append(
            {
                (name, tuple(sorted(labels.items()))): value
                for name, rows in samples.items()
                for labels, value in rows
            }
        )
    return pages


def agent_verdicts(found, pages) -> Verdicts:
    evaluator, verdicts = Evaluator(ALERTS), {i: set() for i in range(len(ALERTS))}
    for step, (state, page) in enumerate(zip(found, pages, strict=True)):
        samples = {}
        for (name, labels), value in page.items():
            samples.setdefault(name, []).append((dict(labels), value))
        for firing in evaluator.observe(state, samples):
            verdicts[ALERTS.index(firing.alert)].add(step)
    return verdicts


def series_of(pages):
    """Every series as promtool writes it: a value a minute, stale where it ends."""
    for key in {key for page in pages for key in page}:
        values, was_there = [], False
        for page in pages:
            is_there = key in page
            values.append(f"{page[key]!r}" if is_there else "stale" if was_there else "_")
            was_there = is_there
        name, labels = key
        pairs = ",".join(f'{k}="{v}"' for k, v in (("job", "dfx"), *labels))
        yield {"series": f"{name}{{{pairs}}}", "values": " ".join(values)}


def promtool_test(pages, verdicts: Verdicts) -> dict:
    there = [{"labels": '{job="dfx",run="r"}', "value": 1}]
    tests = [
        {
            "expr": f"count by (job, run) ({promql(alert.condition)})",
            "eval_time": f"{step}m",
            "exp_samples": there if step in verdicts[i] else [],
        }
        for i, alert in enumerate(ALERTS)
        for step in range(len(pages))
    ]
    test = {"interval": "1m", "input_series": [*series_of(pages)], "promql_expr_test": tests}
    return {"evaluation_interval": "1m", "tests": [test]}


def promtool(binary: str, path: Path, test: dict) -> subprocess.CompletedProcess[str]:
    path.write_text(yaml.safe_dump(test))
    return subprocess.run(
        [binary, "test", "rules", path], capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.parametrize("scene", SCENES)
def test_promtool_and_the_agent_agree_at_every_step(promtool_binary, tmp_path, scene):
    found = states(SCENES[scene]())
    pages = scrapes(found)
    verdicts = agent_verdicts(found, pages)
    done = promtool(promtool_binary, tmp_path / "test.yml", promtool_test(pages, verdicts))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_verdict_of_one_step_that_differs_is_seen(promtool_binary, tmp_path):
    found = states(faulty(FAULTS["length collapse"]))
    pages = scrapes(found)
    verdicts = agent_verdicts(found, pages)
    place, steps = next((i, steps) for i, steps in verdicts.items() if steps)
    verdicts[place] = steps - {min(steps)}
    done = promtool(promtool_binary, tmp_path / "test.yml", promtool_test(pages, verdicts))
    assert done.returncode == 1
    assert f"time: {min(steps)}m" in done.stdout + done.stderr


def test_the_scenes_make_every_stability_alert_fire_and_end():
    fired = set()
    for name, scene in SCENES.items():
        if name != "a real collapse":
            found = states(scene())
            for i, steps in agent_verdicts(found, scrapes(found)).items():
                if steps:
                    fired.add((ALERTS[i].name, ALERTS[i].severity))
    expected = {(a.name, a.severity) for a in ALERTS if a.area == "stability"}
    assert expected - fired == set()
