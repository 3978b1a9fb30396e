"""Spans of a job become stages of its ranks: OpenTelemetry's own SDK, a real agent, a real hub."""

import gzip
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack

import pytest
from hub import hub
from live_processes import HERE, ROOT, job_environment, serving, started, until, unused_port
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import set_span_in_context

SECOND = 10**9


class Job:
    """Processes that tell spans, by the names and the resources of ROLL (8eb27cc)."""

    def __init__(self, url, run=""):
        self._url, self._run = url, run
        self._providers = {}

    def tracer(self, service, instance=None, **more):
        key = service, instance
        if key not in self._providers:
            known = {"service.name": service, "service.instance.id": instance}
            known |= {"dfx.run": self._run or None, **more}
            resource = Resource({name: text for name, text in known.items() if text is not None})
            exporter = OTLPSpanExporter(f"{self._url}/v1/traces", compression=Compression.Gzip)
            provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            provider.add_span_processor(BatchSpanProcessor(exporter))
            self._providers[key] = provider
        return self._providers[key].get_tracer("worker")

    def step(self, number, begin_ns):
        """10 s: 6 of rollout, 3 of training on two workers."""
        driver = self.tracer("driver")
        root = driver.start_span(
            "pipeline_step", attributes={"global_step": number}, start_time=begin_ns
        )
        within = set_span_in_context(root)
        self.span(driver, "generate", within, begin_ns, 6)
        self.span(driver, "train", within, begin_ns + 6 * SECOND, 3)
        for worker in (0, 1):
            tracer = self.tracer("actor_train", f"actor_train-{worker}")
            outer = tracer.start_span(
                "worker.train_step", context=within, start_time=begin_ns + 6 * SECOND
            )
            around = set_span_in_context(outer)
            self.span(tracer, "exec", around, begin_ns + 6 * SECOND, 3)
            outer.end(begin_ns + 9 * SECOND)
        root.end(begin_ns + 10 * SECOND)

    def span(self, tracer, name, within, begin_ns, seconds):
        span = tracer.start_span(name, context=within, start_time=begin_ns)
        span.end(begin_ns + seconds * SECOND)

    def flush(self):
        for provider in self._providers.values():
            assert provider.force_flush()

    def end(self):
        for provider in self._providers.values():
            provider.shutdown()


@pytest.fixture(params=["agent", "hub"])
def receiver(request, tmp_path):
    port = unused_port()
    with ExitStack() as stack:
        if request.param == "hub":
            yield stack.enter_context(hub(tmp_path, port))
        else:
            env = job_environment(DFX_DIR=str(tmp_path / "segments"))
            yield stack.enter_context(serving(tmp_path, port, env=env))


@pytest.fixture
def job(receiver):
    found = Job(receiver.url)
    yield found
    found.end()


def test_steps_of_roll_become_stages_of_its_ranks(receiver, job):
    begin = time.time_ns() - 60 * SECOND
    for number in (7, 8, 9):
        job.step(number, begin + (number - 7) * 10 * SECOND)
    job.flush()

    def whole():
        runs = {run["run"]: run for run in receiver.snapshot()["runs"]}
        steps = runs.get("otlp", {}).get("steps", ())
        known = {row["step"] for row in steps if row["role"] == "actor"}
        return runs["otlp"] if known == {7, 8, 9} else None

    run = until(whole, "three steps of the workers", 60)
    ranks = {(row["role"], row["rank"]) for row in run["ranks"]}
    assert ranks == {("driver", "0"), ("actor", "0"), ("actor", "1")}
    cells = [c for row in run["steps"] if row["role"] == "actor" for c in row["cells"]]
    assert {cell["rank"] for cell in cells} == {"0", "1"}
    for cell in cells:
        assert cell["split"]["stage_seconds"] == {"actor_update": pytest.approx(3, abs=0.01)}
        assert cell["split"]["wall_seconds"] == pytest.approx(10, abs=0.01)
    driver = [row for row in run["steps"] if row["role"] == "driver"]
    assert driver[0]["cells"][0]["split"]["stage_seconds"] == {
        "rollout": pytest.approx(6, abs=0.01),
        "actor_update": pytest.approx(3, abs=0.01),
    }
    assert [v["state"] for v in run["verdicts"] if v["state"] == "found"] == []
    assert {row["host_memory"] for row in run["ranks"]} == {None}, "nobody told of memory"
    rows = receiver.json("/api/v1/runs/otlp/timeline?steps=4&rank=actor/1")
    assert "actor_update" in {piece["name"] for row in rows for piece in row["pieces"]}
    spans = receiver.snapshot()["agent"]["spans"]
    assert (spans["num_taken"], spans["num_left_out"]) == (3 * 7, 0)


def test_what_cannot_be_joined_is_counted_and_named(receiver, job):
    begin = time.time_ns() - 10 * SECOND
    tracer = job.tracer("worker", "host-without-a-number-")
    job.span(tracer, "some work", None, begin, 1)
    job.span(tracer, "more work", None, begin, 1)
    job.flush()
    until(lambda: num_left_out(receiver) == 2, "a count")
    spans = receiver.snapshot()["agent"]["spans"]
    assert spans["first"].startswith("some work: it names no role or no rank")


def test_what_cannot_be_read_is_refused_and_counted(receiver):
    packed = {"Content-Encoding": "gzip"}
    cases = [
        (b"\xff\xff\xff", {}, 400),
        (b"{}", {"Content-Type": "application/json"}, 415),
        (b"no gzip", packed, 400),
        (gzip.compress(b"\x7a\x80\x80\x80\x28" + bytes(80 << 20)), packed, 413),  # one field
        (bytes(9 << 20), {}, 413),
    ]
    for number, (body, headers, status) in enumerate(cases, start=1):
        assert posted(receiver.url, body, headers) == status
        until(lambda num=number: num_left_out(receiver) == num, f"{number} are counted")
    spans = receiver.snapshot()["agent"]["spans"]
    reason = "not an OTLP request of traces: it is cut off"
    assert spans["first"] == f"spans: a request of 127.0.0.1: {reason}"


def num_left_out(receiver):
    spans = receiver.snapshot()["agent"]["spans"]
    return spans and spans["num_left_out"]


def posted(url, body, headers):
    """The status of the answer."""
    known = {"Content-Type": "application/x-protobuf"} | headers
    request = urllib.request.Request(f"{url}/v1/traces", body, known)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def test_data_of_the_guest_wins_over_passive_data(tmp_path):
    segments = str(tmp_path / "segments")
    with ExitStack() as stack:
        env = job_environment(DFX_DIR=segments)
        agent = stack.enter_context(serving(tmp_path, unused_port(), env=env))
        known = {"DFX_RUN": "r", "RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(HERE / "rank_loop.py")]
        env = job_environment(DFX_DIR=segments, **known)
        stack.enter_context(started(command, tmp_path, env))
        row = until(lambda: agent.ranks().get("0"), "the rank")
        job = Job(agent.url)
        tracer = job.tracer("trainer", "trainer-0", **{"dfx.role": row["role"]})
        job.span(tracer, "some work", None, time.time_ns() - 10 * SECOND, 1)
        job.flush()
        spans = until(
            lambda: (s := agent.snapshot()["agent"]["spans"])["num_left_out"] and s, "a count", 60
        )
        job.end()
        assert (
            spans["first"]
            == f"some work: {row['role']} rank 0 has a guest, which reports its stages"
        )
        assert list(agent.ranks()) == ["0"]
