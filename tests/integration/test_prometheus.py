"""The demo on 4 ranks under ``dfx-agent run``, asked through a real Prometheus that scrapes it."""

import json
import signal
import subprocess
import urllib.parse
import urllib.request
from contextlib import contextmanager

import pytest
from live_processes import DEMO, TORCHRUN, demo_environment, running, started, until, unused_port
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from dfx_agent.catalogue.spec import by_name

pytestmark = pytest.mark.smoke
RANKS = ["0", "1", "2", "3"]
STAGES = {
    "rollout", "reward", "old_logprob", "ref_logprob", "advantage", "forward", "backward",
    "weight_sync",
}  # fmt: skip
COMMAND = [*TORCHRUN, "4", *DEMO, "--steps", "1000", "--validate-every", "2"]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: dfx
    static_configs: [{targets: ["127.0.0.1:AGENT"]}]
"""


class Prometheus:
    """A client of a real Prometheus."""

    def __init__(self, process, port):
        self.process = process
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path, **query):
        url = f"{self._url}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]

    def query(self, text):
        """[(labels, value)] now."""
        found = self.get("/api/v1/query", query=text)["result"]
        return [(row["metric"], float(row["value"][1])) for row in found]

    def by_rank(self, text):
        return {labels["rank"]: value for labels, value in self.query(text)}

    def is_ready(self):
        assert self.process.popen.poll() is None, self.process.errors
        try:
            return bool(self.get("/api/v1/status/runtimeinfo"))
        except OSError:
            return False


@contextmanager
def scraping(binary, folder, port, agent_port, text=CONFIG):
    config = folder / "prometheus.yml"
    config.write_text(text.replace("AGENT", str(agent_port)))
    command = [
        binary,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=debug",
    ]
    with started(command, folder) as process:
        prometheus = Prometheus(process, port)
        until(prometheus.is_ready, "Prometheus is ready")
        yield prometheus


@pytest.fixture(scope="module")
def live(prometheus_binary, tmp_path_factory):
    """(agent, Prometheus) once every rank has closed 3 steps while it was scraped."""
    folder = tmp_path_factory.mktemp("prometheus")
    agent_port, port = unused_port(), unused_port()
    environment = demo_environment(DFX_DIR=str(folder / "segments"), TMPDIR=str(folder))
    with (
        running(folder, agent_port, COMMAND, environment) as agent,
        scraping(prometheus_binary, folder, port, agent_port) as prometheus,
    ):

        def has_steps():
            assert agent.process.popen.poll() is None, agent.process.errors
            reached = prometheus.by_rank("dfx_step")
            return sorted(reached) == RANKS and min(reached.values()) >= 4

        until(has_steps, "4 steps of 4 ranks in Prometheus", 90)
        yield agent, prometheus
        agent.process.send(signal.SIGTERM)
        assert agent.process.wait(30) != 0, "SIGTERM reached torchrun"


@pytest.fixture
def prometheus(live):
    return live[1]


@pytest.fixture
def agent(live):
    return live[0]


def test_every_stage_of_every_rank_has_a_series(prometheus):
    rows = prometheus.query("dfx_rank_stage_active_seconds_total")
    stages = {rank: {} for rank in RANKS}
    for labels, value in rows:
        assert (labels["run"], labels["role"]) == ("it", "trainer")
        stages[labels["rank"]][labels["stage"]] = value
    walls = prometheus.by_rank("dfx_rank_wall_seconds_total")
    for rank in RANKS:
        assert set(stages[rank]) >= STAGES
        assert all(value > 0 for value in stages[rank].values())
        assert sum(stages[rank].values()) <= walls[rank]
        # sampling token by token and a training step are the work; the rest is small beside them
        work = stages[rank]["rollout"] + stages[rank]["forward"] + stages[rank]["backward"]
        assert work > stages[rank]["advantage"] + stages[rank]["reward"]


def test_stage_seconds_of_the_last_step_fit_into_it(prometheus):
    steps = prometheus.by_rank("dfx_rank_step_seconds")
    stages = prometheus.by_rank("sum by (rank) (dfx_rank_stage_seconds)")
    assert sorted(steps) == sorted(stages) == RANKS
    for rank in RANKS:
        assert 0 < stages[rank] <= steps[rank] * 1.01
    assert 0 <= prometheus.query("dfx_pipeline_bubble_ratio")[0][1] < 1


def test_active_waits_and_idle_make_up_the_wall_time(prometheus):
    parts = (
        "dfx_rank_active_seconds_total + dfx_rank_idle_seconds_total"
        " + sum by (instance, job, run, role, rank) (dfx_rank_wait_seconds_total)"
    )
    walls = prometheus.by_rank("dfx_rank_wall_seconds_total")
    errors = prometheus.by_rank(f"abs({parts} - dfx_rank_wall_seconds_total)")
    assert sorted(walls) == sorted(errors) == RANKS
    for rank in RANKS:
        assert walls[rank] > 1
        assert errors[rank] <= 1e-6 * walls[rank]


def test_wall_time_is_real_time(prometheus):
    """Over the scrapes so far, wall time grows as the clock of Prometheus does."""
    until(
        lambda: min(prometheus.by_rank("count_over_time(dfx_rank_up[1m])").values()) >= 6, "scrapes"
    )
    for row in prometheus.get("/api/v1/query", query="dfx_rank_wall_seconds_total[1m]")["result"]:
        (begin, first), *_, (end, last) = row["values"]
        assert float(last) - float(first) == pytest.approx(end - begin, abs=1.5, rel=0.1)


def test_scrapes_never_fail(prometheus):
    (target,) = prometheus.get("/api/v1/targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    # the agent was ready before Prometheus began
    assert prometheus.query("min_over_time(up[5m])")[0][1] == 1
    assert prometheus.query("count_over_time(up[5m])")[0][1] >= 3
    assert prometheus.query("min_over_time(scrape_samples_scraped[5m])")[0][1] > 0
    complaints = [
        line
        for line in prometheus.process.errors.splitlines()
        if "scrape" in line and ("level=warn" in line or "level=error" in line)
    ]
    assert complaints == []


def test_tokens_are_counted_on_every_rank(prometheus):
    for kind in ("prompt", "response"):
        tokens = prometheus.by_rank(f'dfx_rank_tokens_total{{kind="{kind}"}}')
        assert sorted(tokens) == RANKS
        assert all(count > 100 for count in tokens.values())


@pytest.mark.parametrize(
    ("query", "low", "high"),
    [
        ('dfx_reward{stat="mean"}', 0, 1),
        ("dfx_actor_entropy_nats", 0.01, 10),
        ("dfx_policy_kl_k1_nats", -1, 1),
        ("dfx_clip_fraction", 0, 1),
        ('dfx_response_length_tokens{stat="mean"}', 1, 24),
    ],
)
def test_training_scalars_come_from_rank_0(prometheus, query, low, high):
    ((labels, value),) = prometheus.query(query)
    assert labels["rank"] == "0"
    assert low <= value <= high


def test_grad_norm_is_seen_on_every_rank(prometheus):
    """The demo logs it on rank 0; the hook on clipping sees each rank's, equal after DDP."""
    norms = prometheus.by_rank("dfx_actor_grad_norm")
    assert sorted(norms) == RANKS
    assert all(1e-6 <= norm <= 1e3 for norm in norms.values())


def test_rank_info_names_processes(prometheus, agent):
    rows = {labels["rank"]: labels for labels, _ in prometheus.query("dfx_rank_info")}
    assert sorted(rows) == RANKS
    assert {rank: labels["local_rank"] for rank, labels in rows.items()} == {r: r for r in RANKS}
    assert {labels["world_size"] for labels in rows.values()} == {"4"}
    pids = {process.pid for process in agent.process.descendants()}
    assert {int(labels["pid"]) for labels in rows.values()} <= pids


def test_nothing_is_lost_late_or_refused(prometheus):
    for name in ("dfx_guest_lost_records", "dfx_guest_dropped", "dfx_guest_late_records"):
        assert prometheus.by_rank(f"{name}_total") == dict.fromkeys(RANKS, 0), name
    assert all(value > 100 for value in prometheus.by_rank("dfx_guest_records_total").values())
    assert prometheus.query("dfx_agent_refused_segments") == []
    assert prometheus.query("dfx_agent_exporter_errors_total")[0][1] == 0
    assert prometheus.query("dfx_stale_scalars_total")[0][1] == 0


def test_promtool_accepts_a_live_scrape(agent, promtool_binary):
    checked = subprocess.run(
        [promtool_binary, "check", "metrics"],
        check=False, capture_output=True, text=True, timeout=30, input=agent.get("/metrics"),
    )  # fmt: skip
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def series(families):
    return [(s.name, tuple(sorted(s.labels.items()))) for f in families for s in f.samples]


def test_openmetrics_parses(agent):
    text = agent.get("/metrics", OPENMETRICS)
    assert text.endswith("# EOF\n")
    families = list(openmetrics(text))
    found = series(families)
    assert len(found) == len(set(found)), "no series twice"
    units = {family.name: family.unit for family in families}
    assert units["dfx_rank_wall_seconds"] == "seconds"
    assert set(by_name()) & set(units) == {n for n in units if n.startswith("dfx_")}


def series_of(metric):
    """Labels that each series of a metric has in addition, by its name."""
    if metric.kind == "histogram":
        parts = {"bucket": {"le"}, "count": set(), "sum": set()}
        return {f"{metric.name}_{part}": more for part, more in parts.items()}
    return {f"{metric.name}_info" if metric.kind == "info" else metric.sample_name: set()}


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
def test_every_exported_name_is_in_the_catalogue_with_its_labels(agent, accept):
    families = list(
        (openmetrics if "open" in accept else plain_text)(agent.get("/metrics", accept))
    )
    known = {name: (m, more) for m in by_name().values() for name, more in series_of(m).items()}
    ours = [(f, s) for f in families for s in f.samples if s.name.startswith("dfx_")]
    assert len({sample.name for _, sample in ours}) > 30
    for family, sample in ours:
        metric, more = known[sample.name]
        assert set(sample.labels) == {*metric.labels, *more}, sample.name
        assert family.documentation == metric.help
        assert not {"job", "instance"} & set(sample.labels)
