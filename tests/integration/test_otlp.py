"""What an OpenTelemetry receiver gets of a job: the series of /metrics, and each step once."""

import signal
import socket
import sys
from contextlib import ExitStack, contextmanager
from itertools import groupby

import pytest
from live_processes import HERE, ROOT, job_environment, serving, started, until, unused_port
from otlp_receiver import attributes, receiving
from prometheus_client.parser import text_string_to_metric_families

NUM_STEPS = 12
RANKS = ("0", "1")
UNITS = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}
# what is there only while something is open, or counts the pushes themselves
PASSING = ("dfx_rank_inflight", "dfx_otlp", "dfx_agent", "dfx_native")


@pytest.fixture
def receiver():
    with receiving() as receiver:
        yield receiver


@contextmanager
def pushed_to(receiver, folder, **settings):
    """An agent that pushes every second, and two ranks that train for a while."""
    env = job_environment(DFX_OTLP_ENDPOINT=receiver.url, DFX_OTLP_SECONDS="1", **settings)
    with ExitStack() as stack:
        agent = stack.enter_context(serving(folder, unused_port(), env=env))
        for rank in RANKS:
            known = {"DFX_RUN": "r", "RANK": rank, "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
            command = [sys.executable, str(HERE / "rank_loop.py"), str(NUM_STEPS)]
            stack.enter_context(started(command, folder, job_environment(**known)))
        yield agent


def pushed_series(receiver):
    """As Prometheus names them: with underscores, and _total behind a sum."""
    found = {}
    for metric in receiver.metrics().values():
        name, is_sum = metric.name.replace(".", "_"), metric.HasField("sum")
        for point in (metric.sum if is_sum else metric.gauge).data_points:
            series = name + "_total" * is_sum, frozenset(attributes(point).items())
            found[series] = point.as_double
    return found


def scraped_series(agent):
    families = text_string_to_metric_families(agent.get("/metrics"))
    samples = [s for f in families for s in f.samples if s.name.startswith("dfx_")]
    return {(s.name, frozenset(s.labels.items())): s.value for s in samples}


def lasting(series):
    return {key: value for key, value in series.items() if not key[0].startswith(PASSING)}


def of_the_job(series):
    """Without what is measured of the machine, which changes between two readings."""
    return {(name, labels): value for (name, labels), value in series.items()
            if "run" in dict(labels)}  # fmt: skip


def by_step(spans):
    key = lambda span: attributes(span)["dfx.step"]  # noqa: E731
    return {step: list(group) for step, group in groupby(sorted(spans, key=key), key)}


def test_the_series_of_a_scrape_arrive_under_names_with_dots(receiver, dfx_dir, tmp_path):
    more = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc"}
    more["OTEL_RESOURCE_ATTRIBUTES"] = "deployment.environment=lab"
    with pushed_to(receiver, tmp_path, **more) as agent:
        until(lambda: len(agent.ranks()) == 2, "both ranks")
        until(lambda: all(r["state"] == "exited" for r in agent.ranks().values()), "both ended")
        num_before = len(receiver.pushes)
        until(lambda: len(receiver.pushes) > num_before + 1, "two pushes")
        pushed, scraped = pushed_series(receiver), scraped_series(agent)
    pushed_lasting, scraped_lasting = lasting(pushed), lasting(scraped)
    assert pushed_lasting.keys() == scraped_lasting.keys()
    assert of_the_job(pushed_lasting) == pytest.approx(of_the_job(scraped_lasting))
    assert {name for name, _ in pushed if name.startswith("dfx_otlp")}
    for metric in receiver.metrics().values():
        name = metric.name.replace(".", "_")
        # a receiver appends the word of the unit where the name does not end with it
        assert metric.unit in {"", *(unit for end, unit in UNITS.items() if name.endswith(end))}
        assert metric.description
        if metric.HasField("sum"):
            assert metric.sum.is_monotonic
            assert all(
                0 < p.start_time_unix_nano < p.time_unix_nano for p in metric.sum.data_points
            )
    assert receiver.metrics()["dfx.rank.wall.seconds"].unit == "s"
    resource = receiver.resources[-1]
    assert resource["service.name"] == "dfx"
    assert resource["service.instance.id"] == f"{socket.gethostname()}:{agent.port}"
    assert resource["deployment.environment"] == "lab"
    assert receiver.headers["authorization"] == "Bearer abc"


@pytest.mark.smoke
def test_each_step_is_one_trace_of_ranks_and_their_pieces(receiver, dfx_dir, tmp_path):
    with pushed_to(receiver, tmp_path) as agent:
        until(lambda: len(by_step(receiver.spans)) == NUM_STEPS, "all steps")
        traces = by_step(receiver.spans)
        num_spans = len(receiver.spans)
        sent = f'dfx_otlp_sent_total{{signal="traces"}} {num_spans}.0'
        until(lambda: sent in agent.get("/metrics"), "they are counted")
        assert "dfx_otlp_missed_steps_total 0.0" in agent.get("/metrics")
    assert len(receiver.spans) == num_spans  # the end tells none again
    assert len({span.span_id for span in receiver.spans}) == num_spans
    for spans in traces.values():
        (trace,) = {span.trace_id for span in spans}
        assert len(trace) == 16
        (root,) = (span for span in spans if span.name == "step")
        ranks = {attributes(span)["dfx.rank"]: span for span in spans if span.name == "rank"}
        assert (root.parent_span_id, tuple(sorted(ranks))) == (b"", RANKS)
        for rank, span in ranks.items():
            assert span.parent_span_id == root.span_id
            inside = [s for s in spans if s.parent_span_id == span.span_id]
            assert {"rollout", "actor_update", "wait barrier"} <= {s.name for s in inside}
            assert {attributes(s)["dfx.rank"] for s in inside} == {rank}
            for piece in inside:
                assert span.start_time_unix_nano <= piece.start_time_unix_nano
                assert piece.start_time_unix_nano < piece.end_time_unix_nano
                assert piece.end_time_unix_nano <= span.end_time_unix_nano
            rollout = sum(
                s.end_time_unix_nano - s.start_time_unix_nano for s in inside if s.name == "rollout"
            )
            assert rollout >= 0.09e9


def test_what_a_receiver_refuses_for_a_while_is_said_and_comes_later(receiver, dfx_dir, tmp_path):
    receiver.status = 400  # as one that is not for OTLP; 503 would be tried again at once
    with pushed_to(receiver, tmp_path) as agent:
        until(lambda: receiver.num_refused > 4, "refusals")
        until(lambda: 'dfx_otlp_active{signal="traces"} 0.0' in agent.get("/metrics"), "inactive")
        result = [problem["message"] for problem in agent.snapshot()["agent"]["problems"]]
        assert any("traces are not taken" in line and "400" in line for line in result), result
        receiver.status = 200
        until(lambda: len(by_step(receiver.spans)) == NUM_STEPS, "all steps")
        until(lambda: not agent.snapshot()["agent"]["problems"], "no problem any more")
        lines = agent.process.errors.splitlines()
    for word in ("traces", "metrics"):
        about = [line for line in lines if f"OpenTelemetry {word}" in line]
        assert [("not taken" in line, "taken again" in line) for line in about] == [
            (True, False), (False, True)
        ]  # fmt: skip
    assert len({span.span_id for span in receiver.spans}) == len(receiver.spans)


def test_an_agent_ends_at_once_when_nobody_takes_its_pushes(dfx_dir, tmp_path):
    env = job_environment(DFX_OTLP_ENDPOINT=f"http://127.0.0.1:{unused_port()}")
    with serving(tmp_path, unused_port(), env={**env, "DFX_OTLP_SECONDS": "1"}) as agent:
        until(lambda: "refused" in agent.process.errors, "it is said")
        agent.process.send(signal.SIGTERM)
        assert agent.process.wait(10) == 0
        assert "is not done" not in agent.process.errors


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DFX_OTLP_ENDPOINT", "collector:4318", "write http://HOST:PORT"),
        ("DFX_OTLP_SIGNALS", "metrics,logs", "otlp_signals: no 'logs': there are metrics, traces"),
    ],
)
def test_a_wrong_setting_fails_the_start(run_cli, dfx_dir, monkeypatch, name, value, says):
    monkeypatch.setenv("DFX_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv(name, value)
    done = run_cli("serve", "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert says in line
