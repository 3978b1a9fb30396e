"""Alerts straight from the agent to a real Alertmanager and to webhooks, through restarts."""

import base64
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from alert_receivers import alertmanager, hooked
from live_processes import DFX_AGENT, LiveAgent, job_environment, started, until, unused_port

from dfx_agent.alerting import alertmanager as am
from dfx_agent.alerting import courier, live, transport
from dfx_agent.alerting.alertmanager import alertmanagers
from dfx_agent.alerting.live import LiveAlerts
from dfx_agent.alerting.notification import fingerprint
from dfx_agent.alerting.transport import DeliveryError, Endpoint
from dfx_agent.alerting.webhook import webhooks
from dfx_agent.catalogue.alerts.declared import ALERTS
from dfx_agent.catalogue.alerts.samples import samples_of
from dfx_agent.snapshot import AgentRow, RunRow, SignalState, Snapshot, SymptomRow

HERE = Path(__file__).parent
PAGE = "DfxTrainingDivergence"
AGENT = AgentRow("1", 1, "node", 0.0, 1, 0.0, 1, 0, 0, 0, 0, None, ())


class Runs:
    """A ``Source`` of runs that diverge when told to."""

    def __init__(self) -> None:
        self.diverging: set[str] = set()
        self._row = 0

    def snapshot(self) -> Snapshot:
        self._row += 1
        return Snapshot(0.0, AGENT, tuple(self._run(name) for name in ("a", "b", "c")))

    def _run(self, name: str) -> RunRow:
        is_bad = name in self.diverging
        symptoms = tuple(SymptomRow(s, "down", is_bad, 7 if is_bad else None)
                         for s in ("reward", "length"))  # fmt: skip
        state = SignalState(
            self._row, self._row, (), symptoms, False, False, None, {}, None, False  # noqa: FBT003
        )  # fmt: skip
        return RunRow(name, "verl", 0, 0.0, (), (), (), signals=state)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes as half seconds."""
    monkeypatch.setattr(live, "EVALUATE_SECONDS", 0.1)
    monkeypatch.setattr(courier, "_POLL_SECONDS", 0.1)
    monkeypatch.setattr(am, "RESEND_SECONDS", 0.5)
    monkeypatch.setattr(am, "MIN_FIRING_SECONDS", 1.0)
    monkeypatch.setattr(transport, "FIRST_RETRY_SECONDS", 0.2)
    monkeypatch.setattr(transport, "LONGEST_RETRY_SECONDS", 0.5)


@pytest.fixture
def delivering(quick):
    """A function that starts delivery of ``Runs`` to receivers."""
    begun = []

    def begin(*receivers) -> tuple[Runs, LiveAlerts]:
        runs = Runs()
        alerts = LiveAlerts(
            runs, lambda run: samples_of(run.signals), ALERTS, receivers, {"job": "dfx"},
            lambda: "http://page:1",
        )  # fmt: skip
        alerts.start()
        begun.append(alerts)
        return runs, alerts

    yield begin
    for alerts in begun:
        alerts.stop()


def test_alertmanager_gets_what_fires_and_hears_when_it_ends(
    alertmanager_binary, tmp_path, delivering
):
    port = unused_port()
    with hooked() as hook, alertmanager(alertmanager_binary, tmp_path, port, hook) as manager:
        runs, alerts = delivering(*alertmanagers([Endpoint(manager.url + am.API_PATH)]))
        runs.diverging = {"a"}
        until(lambda: hook.told == [("firing", PAGE, "a")], "the page arrives")
        (found,) = manager.alerts()
        assert found["labels"] == alerts.alerts().alerts[0].labels
        assert found["fingerprint"] == fingerprint(found["labels"])
        assert found["generatorURL"] == "http://page:1/#run=a"
        assert found["annotations"]["description"] == (
            "run a: Training is diverging: several independent signals agree, or one is far out of "
            "its range. "
            "reward down since step 7; length down since step 7"
        )
        assert found["annotations"]["runbook_url"] == "http://page:1/runbook#dfxtrainingdivergence"
        runs.diverging = set()
        until(lambda: hook.told[1:] == [("resolved", PAGE, "a")], "the end arrives")
        (delivery,) = alerts.alerts().deliveries
        assert (delivery.num_failed, delivery.num_dropped, delivery.num_waiting) == (0, 0, 0)
        assert delivery.num_sent >= 2
        assert delivery.is_reached is True


def test_nothing_is_lost_or_doubled_when_alertmanager_restarts(
    alertmanager_binary, tmp_path, delivering
):
    port = unused_port()
    with hooked() as hook:
        endpoint = Endpoint(f"http://127.0.0.1:{port}{am.API_PATH}")
        runs, alerts = delivering(*alertmanagers([endpoint]))
        with alertmanager(alertmanager_binary, tmp_path, port, hook) as manager:
            runs.diverging = {"a"}
            until(lambda: hook.told == [("firing", PAGE, "a")], "the page arrives")
            manager.process.send(signal.SIGTERM)
            manager.process.wait()
        runs.diverging = {"a", "b", "c"}
        until(lambda: alerts.alerts().deliveries[0].is_reached is False, "it is missed")
        waiting = until(lambda: alerts.alerts().deliveries[0].num_waiting, "c waits")
        assert waiting == 2
        runs.diverging = {"a", "b"}
        until(lambda: {r.run for r in alerts.alerts().alerts} == {"a", "b"}, "c is over")
        with alertmanager(alertmanager_binary, tmp_path, port, hook):
            expected = {
                ("firing", PAGE, "a"), ("firing", PAGE, "b"), ("firing", PAGE, "c"),
                ("resolved", PAGE, "c"),
            }  # fmt: skip
            until(lambda: set(hook.told) == expected, "all that happened meanwhile arrives")
            runs.diverging = {"b"}
            until(lambda: ("resolved", PAGE, "a") in hook.told, "the end of a arrives")
            assert len(hook.told) == len(set(hook.told)) == 5
        (delivery,) = alerts.alerts().deliveries
        assert delivery.num_failed > 0
        assert delivery.num_dropped == 0


def test_a_cluster_is_listed_member_by_member(delivering):
    with hooked() as first, hooked() as second:
        first.answers = [503] * 3
        runs, alerts = delivering(*alertmanagers([Endpoint(first.url), Endpoint(second.url)]))
        runs.diverging = {"a"}
        until(lambda: second.bodies, "the second one has it")
        until(lambda: first.bodies, "the first one has it, later")
        failures = {row.num_failed for row in alerts.alerts().deliveries}
        assert failures == {3, 0}


def test_a_webhook_is_called_once_each_until_it_answers(delivering):
    with hooked() as hook:
        hook.answers = [500, 429, 302]
        runs, alerts = delivering(*webhooks([Endpoint(hook.url)]))
        runs.diverging = {"a"}
        until(lambda: hook.told == [("firing", PAGE, "a")], "the page arrives")
        runs.diverging = set()
        until(lambda: hook.told[1:] == [("resolved", PAGE, "a")], "the end arrives")

        def delivery():
            (found,) = alerts.alerts().deliveries
            return found

        until(lambda: delivery().num_sent == 2, "the second answer is counted")
        assert (delivery().num_failed, delivery().num_dropped) == (3, 0)
        assert "secret" not in delivery().target


def test_an_event_that_a_webhook_refuses_is_dropped_and_counted(delivering):
    with hooked() as hook:
        hook.answers = [400]
        runs, alerts = delivering(*webhooks([Endpoint(hook.url)]))
        runs.diverging = {"a"}
        until(lambda: alerts.alerts().deliveries[0].num_dropped == 1, "it is given up")
        assert alerts.alerts().deliveries[0].last_error.startswith("HTTP 400")
        runs.diverging = set()
        until(lambda: hook.told == [("resolved", PAGE, "a")], "the end arrives")


@pytest.mark.parametrize(("answers", "num_told"), [([], 1), ([503] * 9, 0)])
def test_the_end_of_the_agent_delivers_what_waits_or_says_that_it_could_not(
    quick, answers, num_told
):
    with hooked() as hook:
        hook.answers = answers
        runs = Runs()
        alerts = LiveAlerts(runs, lambda run: samples_of(run.signals), ALERTS,
                            webhooks([Endpoint(hook.url)]))  # fmt: skip
        alerts.start()
        runs.diverging = {"a"}
        alerts.stop()
        assert len(hook.told) == num_told
        assert alerts.alerts().deliveries[0].num_waiting == 1 - num_told


# --------------------------------------------------------------------------------------- transport


def test_credentials_come_from_files_that_may_rotate(tmp_path):
    token, pair = tmp_path / "token", tmp_path / "pair"
    with hooked() as hook:
        for secret in ("one", "two"):
            token.write_text(secret + "\n")
            Endpoint(hook.url, token_file=str(token)).post({})
        pair.write_text("user:pass")
        Endpoint(hook.url, basic_auth_file=str(pair)).post({})
        shown = [headers.get("Authorization") for headers in hook.headers]
        basic = base64.b64encode(b"user:pass").decode()
        assert shown == ["Bearer one", "Bearer two", f"Basic {basic}"]
        token.unlink()
        with pytest.raises(DeliveryError, match="No such file"):
            Endpoint(hook.url, token_file=str(token)).post({})


@pytest.mark.parametrize(
    ("code", "is_final"),
    [(302, False), (400, True), (401, False), (404, False), (422, True), (429, False),
     (500, False), (503, False)],
)  # fmt: skip
def test_which_refusals_are_final(code, is_final):
    with hooked() as hook:
        hook.answers = [code]
        with pytest.raises(DeliveryError, match=f"HTTP {code}") as caught:
            Endpoint(hook.url).post({})
        assert caught.value.is_final is is_final


def test_nobody_there_is_one_line():
    with pytest.raises(DeliveryError, match=r"Connection refused") as caught:
        Endpoint(f"http://127.0.0.1:{unused_port()}/x").post({})
    assert "\n" not in str(caught.value)


def test_https_is_checked_against_the_given_authority(tmp_path):
    """The certificate is of nobody we know: refused, unless its authority is named."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    done = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with hooked() as hook:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        hook._server.socket = context.wrap_socket(hook._server.socket, server_side=True)
        url = hook.url.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(DeliveryError, match="CERTIFICATE_VERIFY_FAILED"):
            Endpoint(url).post({})
        Endpoint(url, ca_file=str(cert)).post({"ok": 1})
        assert hook.bodies == [{"ok": 1}]


def test_retries_wait_longer_and_longer_and_not_in_step():
    waits = [transport.Retry() for _ in range(20)]
    first = {retry.failed() for retry in waits}
    assert len(first) == 20
    assert all(0.5 <= seconds <= 1 for seconds in first)
    last = [[retry.failed() for _ in range(20)][-1] for retry in waits]
    assert all(30 <= seconds <= 60 for seconds in last)


# -------------------------------------------------------------------------------------- whole agent


@pytest.mark.smoke
def test_serve_delivers_a_collapse_and_shows_it(dfx_dir, tmp_path):
    """A real job whose reward and length fall, a real ``serve``: webhook, /api, /metrics."""
    port = unused_port()
    with hooked() as hook:
        serve = [*DFX_AGENT, "serve", "--listen", f"127.0.0.1:{port}", "--webhook", hook.url,
                 "--alertmanager", f"http://127.0.0.1:{unused_port()}",
                 "--alert-label", "cluster=test"]  # fmt: skip
        with started(serve, tmp_path) as process:
            agent = LiveAgent(process, port)
            agent.wait_until_ready()
            job = [sys.executable, str(HERE / "collapsing_job.py")]
            env = job_environment(PYTHONPATH=str(HERE.parents[1]), DFX_RUN="it")
            with started(job, tmp_path, env):
                until(lambda: ("firing", PAGE, "it") in hook.told, "the page arrives", 90)
                body = next(b for b in hook.bodies if b["alerts"][0]["labels"]["run"] == "it"
                            and b["commonLabels"]["alertname"] == PAGE)  # fmt: skip
                assert body["commonLabels"]["cluster"] == "test"
                assert body["commonLabels"]["job"] == "dfx"
                description = body["commonAnnotations"]["description"]
                assert re.search(
                    r"Training has been diverging since step \d+.*: .*reward fell", description
                )
                assert re.search(r"\. (Reward|Response length) first: ", description), description
                shown = agent.json("/api/v1/alerts")
                assert PAGE in {row["alert"] for row in shown["alerts"]}
                metrics = agent.get("/metrics")
                active = rf'dfx_alert_active{{run="it",node="[^"]+",alertname="{PAGE}",severity='
                assert re.search(rf'^{active}"critical"}} 1\.0$', metrics, re.MULTILINE)
                assert 'dfx_alert_notifications_failed_total{kind="alertmanager"' in metrics
            process.send(signal.SIGTERM)
            assert process.wait() == 0
            assert "not delivered to alertmanager 127.0.0.1:" in process.errors


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--alertmanager", "localhost:9093"], "write http://HOST:PORT"),
        (["--webhook", "ftp://x"], "write http://HOST:PORT"),
        (["--webhook", "http://u:p@x"], "no user or password in the URL"),
        (["--alert-label", "job"], "write NAME=VALUE"),
        (["--alert-label", "run=x"], "none of alertname"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(run_cli, dfx_dir, arguments, says):
    done = run_cli("serve", "--listen", "127.0.0.1:0", *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("dfx-agent: ")
    assert says in line
