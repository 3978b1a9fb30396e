"""The committed rules are what the catalogue says, and Prometheus's own tools accept them."""

import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from alert_rules.build import main, render
from alert_rules.cases import CASES
from alert_rules.cases.case import at
from alert_rules.promtool import test_file as promtool_tests
from dfx_agent.catalogue import memory, per_rank, signals, verdicts
from dfx_agent.catalogue.alerts.conditions import Either, Every, Increases, Promql, Unless, parts_of
from dfx_agent.catalogue.alerts.declared import (
    ALERTS,
    PROMETHEUS_ALERTS,
    alerts_with,
    observation,
    thresholds,
)
from dfx_agent.catalogue.alerts.prometheus import Links, rule_files
from dfx_agent.catalogue.alerts.promql import promql
from dfx_agent.catalogue.alerts.thresholds import Threshold

ROOT = Path(__file__).resolve().parents[3]
GENERATED = ROOT / "alert_rules" / "generated"
BY_KEY = {(alert.name, alert.severity): alert for alert in PROMETHEUS_ALERTS}


def run(*command, cwd):
    return subprocess.run(
        command, cwd=cwd, check=False, capture_output=True, text=True, timeout=250
    )


# --------------------------------------------------------------------------------- what is written


def test_committed_files_are_up_to_date(tmp_path):
    stale = tmp_path / "alert_rules" / "generated" / "dfx-old.rules.yaml"
    stale.parent.mkdir(parents=True)
    stale.write_text("groups: []")
    assert main([str(tmp_path)]) == 0
    made = {p.relative_to(tmp_path): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    committed = {path: (ROOT / path).read_text() for path in made}
    assert made == committed, "alerts are stale: run `make generate`"
    assert {p.name for p in GENERATED.iterdir()} == {p.name for p in made if "generated" in p.parts}
    assert {str(path): text for path, text in made.items()} == render()


def test_every_alert_has_positive_and_negative_cases_and_no_other_has():
    assert set(CASES) == set(BY_KEY)
    for key, cases in CASES.items():
        assert cases.fires, key
        assert cases.silent or key[0] == "DfxWatchdog", key


def test_every_alert_has_a_runbook_section_that_its_link_leads_to():
    page = (ROOT / "docs" / "runbook.md").read_text()
    rules = "".join(rule_files(PROMETHEUS_ALERTS, Links()).values())
    for alert in PROMETHEUS_ALERTS:
        assert f"\n## {alert.name}\n" in page
        assert f"runbook_url: http://127.0.0.1:9931/runbook#{alert.name.lower()}\n" in rules
        section = page.split(f"\n## {alert.name}\n")[1].split("\n## ")[0]
        for part in ("Meaning", "Impact", "Diagnosis", "Mitigation"):
            assert section.count(f"**{part}.** ") == 1
        for threshold in parts_of(alert, Threshold):
            assert f"`{threshold.key}`" in section


def test_boards_that_alerts_open_exist():
    boards = {path.stem for path in (ROOT / "dashboards" / "generated").glob("*.json")}
    assert {alert.board for alert in PROMETHEUS_ALERTS} <= boards


def test_a_series_of_a_case_has_the_labels_of_the_catalogue():
    with pytest.raises(ValueError, match="dfx_rank_up has no label symptom"):
        at(per_rank.RANK_UP, 1, symptom="reward")


# ------------------------------------------------------------------------------------- promtool


def test_promtool_accepts_the_rules(promtool_binary):
    files = sorted(path.name for path in GENERATED.glob("*.rules.yaml"))
    done = run(promtool_binary, "check", "rules", *files, cwd=GENERATED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(text.startswith("  SUCCESS") for text in done.stdout.splitlines()) == len(files) > 4


def test_promtool_passes_the_committed_tests(promtool_binary):
    files = sorted(path.name for path in GENERATED.glob("*.tests.yaml"))
    done = run(promtool_binary, "test", "rules", *files, cwd=GENERATED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(files) == len(list(GENERATED.glob("*.rules.yaml")))


def passes(alert, folder, promtool):
    """Whether this alert alone, perhaps changed, passes the committed cases of its name."""
    quiet = replace(alert, listing=None)
    ((name, text),) = rule_files([quiet], Links()).items()
    (folder / name).write_text(text)
    (folder / "tests.yaml").write_text(promtool_tests(name, [alert], CASES))
    done = run(promtool, "test", "rules", "tests.yaml", cwd=folder)
    assert "exp: " in done.stderr or done.returncode == 0, done.stdout + done.stderr
    return done.returncode == 0


def moved_thresholds():
    """(alert, key, new value): one step or 10 % to each side, which lies past the cases' data."""
    for alert in PROMETHEUS_ALERTS:
        for threshold in {t.key: t for t in parts_of(alert, Threshold)}.values():
            is_count = threshold.unit in {"steps", "families"}
            for side in (-1, 1):
                value = threshold + side if is_count else threshold * (1 + 0.1 * side)
                yield pytest.param(
                    alert,
                    threshold.key,
                    value,
                    id=f"{alert.name}-{alert.severity}-{threshold.key}-{side}",
                )


@pytest.mark.slow
@pytest.mark.parametrize(("alert", "key", "value"), list(moved_thresholds()))
def test_a_moved_threshold_fails_the_promtool_tests(alert, key, value, tmp_path, promtool_binary):
    (moved,) = alerts_with({key: value}, (alert,))
    assert promql(moved.condition) != promql(alert.condition)
    assert not passes(moved, tmp_path, promtool_binary)


def reduced(value):
    """A condition with one of its parts left out, for each part at any depth."""
    if isinstance(value, (Every, Either)):
        for i in range(len(value.conditions)):
            rest = value.conditions[:i] + value.conditions[i + 1 :]
            yield rest[0] if len(rest) == 1 else replace(value, conditions=rest)
        for i, part in enumerate(value.conditions):
            for less in reduced(part):
                parts = (*value.conditions[:i], less, *value.conditions[i + 1 :])
                yield replace(value, conditions=parts)
    elif isinstance(value, Unless):
        yield value.condition
        for less in reduced(value.condition):
            yield replace(value, condition=less)
        for less in reduced(value.veto):
            yield replace(value, veto=less)
    else:
        assert is_dataclass(value)
        assert not any(isinstance(getattr(value, f.name), Either) for f in fields(value))


LESS = [
    pytest.param(alert, less, id=f"{alert.name}-{alert.severity}-{i}")
    for alert in PROMETHEUS_ALERTS
    for i, less in enumerate(reduced(alert.condition))
]


@pytest.mark.slow
@pytest.mark.parametrize(("alert", "less"), LESS)
def test_a_condition_without_one_of_its_parts_fails_the_promtool_tests(
    alert, less, tmp_path, promtool_binary
):
    assert not passes(replace(alert, condition=less), tmp_path, promtool_binary)


@pytest.mark.parametrize(
    ("name", "part", "instead"),
    [
        ("DfxAgentDown", f" unless on (job, instance) {observation.ENDED_LAST} == 1", ""),
        ("DfxAgentDown", observation.ENDED_LAST, "dfx_agent_job_ended"),
        ("DfxRunVanished", "last_over_time(dfx_rank_up", "max_over_time(dfx_rank_up"),
        ("DfxRunVanished", " or last_over_time(dfx_agent_job_ended[30m]) == 1", ""),
        ("DfxRunVanished", "up == 1 or last", "last"),
        ("DfxRunVanished", "dfx_agent_job_ended[30m]) == 1", "dfx_agent_job_ended[30m]) == 0"),
    ],
)
def test_a_rule_on_agents_without_one_of_its_parts_fails_the_promtool_tests(
    name, part, instead, tmp_path, promtool_binary
):
    """They are text: what ``reduced`` does to other conditions is done by hand."""
    (alert,) = (alert for alert in PROMETHEUS_ALERTS if alert.name == name)
    text = alert.condition.text.replace(part, instead)
    assert text != alert.condition.text
    less = replace(alert.condition, text=text)
    assert not passes(replace(alert, condition=less), tmp_path, promtool_binary)


@pytest.mark.parametrize("name", ["DfxTrainingDivergence", "DfxHostMemoryLeak"])
def test_an_alert_as_it_is_passes_alone(name, tmp_path, promtool_binary):
    alert = next(alert for alert in PROMETHEUS_ALERTS if alert.name == name)
    assert passes(alert, tmp_path, promtool_binary)
    assert not passes(replace(alert, condition=Promql("vector(0) > 1")), tmp_path, promtool_binary)


# ------------------------------------------------------------------ the agent says the same


def native_samples(series, now_seconds, increases):
    """The series before and after their rise, as an agent meets them."""
    before, after = {}, {}
    for sample in series:
        name, labels = sample.metric.sample_name, dict(sample.labels)
        first = sample.value if sample.before is None else sample.before
        before.setdefault(name, []).append((labels, first))
        after.setdefault(name, []).append((labels, sample.value))
    increases.with_increases(before, now_seconds)
    return increases.with_increases(after, now_seconds + 60)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: f"{a.name}-{a.severity}")
def test_the_agent_comes_to_the_same_verdict_on_every_case(alert):
    cases = CASES[alert.name, alert.severity]
    for group, holds in ((cases.fires, True), (cases.silent, False)):
        for series in group:
            samples = native_samples(series, 0, Increases([alert]))
            assert alert.condition.holds(samples) is holds, series


def test_growth_is_forgotten_after_the_window_and_a_restart_is_no_growth():
    alert = BY_KEY["DfxShimDropping", "warning"]
    increases = Increases([alert])

    def fires(value, now_seconds):
        rows = {"dfx_guest_dropped_total": [({"rank": "0"}, value)]}
        return alert.condition.holds(increases.with_increases(rows, now_seconds))

    assert not fires(7.0, 0)
    assert fires(8.0, 10)
    assert fires(8.0, 309)
    assert not fires(8.0, 311)
    assert not fires(0.0, 320)
    assert fires(2.0, 330)
    assert fires(1.0, 700), "a fall is a restart, and what it has since is growth"


def test_no_alert_reads_a_metric_that_the_agent_cannot_export():
    """Each metric has a value, is used by name under exporters, or mapped from a native key."""
    from dfx_agent.alerting.evaluator import metrics_read
    from dfx_agent.catalogue.native import frameworks, load
    from dfx_agent.catalogue.spec import by_name

    sources = [*(ROOT / "dfx_agent" / "exporters").rglob("*.py"),
               ROOT / "dfx_agent" / "catalogue" / "alerts" / "samples.py"]  # fmt: skip
    text = "".join(path.read_text() for path in sources)
    mapped = {entry.metric for name in frameworks() for entry in load(name).entries()}
    constants = {}
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("dfx_agent.catalogue."):
            named = {id(m): n for n, m in vars(module).items() if n.isupper()}
            constants.update(named)
    for name in metrics_read(PROMETHEUS_ALERTS):
        metric = by_name()[name]
        is_written = metric.value is not None or f".{constants[id(metric)]}" in text
        assert is_written or name in mapped, name
    assert signals.SYMPTOM_ACTIVE.name in metrics_read(PROMETHEUS_ALERTS)


def test_thresholds_have_one_default_each():
    defaults = thresholds()
    for alert in PROMETHEUS_ALERTS:
        for threshold in parts_of(alert, Threshold):
            same = defaults[threshold.key]
            assert (float(threshold), threshold.unit, threshold.meaning) == (
                float(same), same.unit, same.meaning,
            )  # fmt: skip


def test_the_leak_alert_names_the_ranks_that_leak_alone():
    """Every rank has a slope; the verdict alone knows which of them leaks."""
    alert = BY_KEY["DfxHostMemoryLeak", "warning"]
    reported = {"kind": "memory", "cause": "host leak", "role": "trainer", "stage": "", "rank": "1"}
    slopes = [({"role": "trainer", "rank": "0"}, 120.0), ({"role": "trainer", "rank": "1"}, 4e6)]
    samples = {
        memory.HOST_SLOPE.sample_name: slopes,
        verdicts.VERDICT_ACTIVE.sample_name: [(reported, 1.0), (reported | {"rank": "0"}, 0.0)],
    }
    assert alert.condition.holds(samples)
    assert alert.listing.lines(samples) == ["rank 1"]
