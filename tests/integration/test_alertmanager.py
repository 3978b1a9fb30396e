"""The demo, sound and diverging, under real Prometheus and Alertmanager with the shipped files."""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from alert_receivers import Alertmanager, hooked
from live_processes import (
    DEMO,
    DFX_AGENT,
    ROOT,
    TORCHRUN,
    demo_environment,
    serving,
    started,
    until,
    unused_port,
)

STEPS, ONSET = 60, 35
TRAINING = [*TORCHRUN, "2", *DEMO, "--validate-every", "0", "--steps", str(STEPS)]
RECEIVERS = ("pager", "chat", "deadman")
PAGE = "DfxTrainingDivergence"
SINGLES = {"DfxTrainingDivergenceClassic", "DfxSymptomKl", "DfxSymptomGradNorm",
           "DfxSymptomEntropy", "DfxSymptomReward", "DfxSymptomLength"}  # fmt: skip
GROUP_WAIT_SECONDS = 5


def amtool(*arguments):
    return subprocess.run(
        ["amtool", *arguments], check=False, capture_output=True, text=True, timeout=60
    )


CONFIGURATION = str(ROOT / "deploy" / "alertmanager.yml")


# Debian's package brings both programs
needs_amtool = pytest.mark.usefixtures("alertmanager_binary")


@needs_amtool
def test_amtool_accepts_the_configuration():
    done = amtool("check-config", CONFIGURATION)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_amtool
@pytest.mark.parametrize(
    ("receiver", "labels"),
    [
        ("pager", ("alertname=DfxTrainingDivergence", "severity=critical")),
        ("pager", ("alertname=DfxRunVanished", "severity=critical")),
        ("chat", ("alertname=DfxTrainingUnstable", "severity=warning")),
        ("nobody", ("alertname=DfxSymptomKl", "severity=info")),
        ("deadman", ("alertname=DfxWatchdog", "severity=none")),
        ("chat", ("alertname=SomebodyElse",)),
    ],
)
def test_routes(receiver, labels):
    done = amtool(
        "config", "routes", "test", f"--config.file={CONFIGURATION}",
        f"--verify.receivers={receiver}", *labels, "job=dfx", "run=it",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def replaced(path, *pairs):
    """Edit a shipped file as an operator would."""
    text = path.read_text()
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)


def shipped(folder, agent, prometheus_port, manager_port, hooks):
    """What `dfx-agent assets` writes, with the ports of this test; the commands that start it."""
    done = subprocess.run(
        [*DFX_AGENT, "assets", str(folder), "--set", f"runbook_url={agent.url}/runbook"],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    replaced(
        folder / "prometheus.yml",
        ("127.0.0.1:9931", f"127.0.0.1:{agent.port}"),
        ("127.0.0.1:9093", f"127.0.0.1:{manager_port}"),
        (": 5s", ": 1s"),
    )
    replaced(
        folder / "alertmanager.yml",
        ("group_wait: 5s", f"group_wait: {GROUP_WAIT_SECONDS}s"),
        *((f"http://127.0.0.1:9099/{name}", hook.url) for name, hook in hooks.items()),
    )
    prometheus = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{prometheus_port}",
    ]
    manager = [
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'state'}",
        f"--web.listen-address=127.0.0.1:{manager_port}",
        "--cluster.listen-address=",
    ]
    return prometheus, manager


def asked(port, query):
    """[(labels, value)] of Prometheus, now."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as response:
        rows = json.load(response)["data"]["result"]
    return [(row["metric"], row.get("value") or row["values"]) for row in rows]


def answers(port):
    try:
        return bool(asked(port, "up == 1"))
    except OSError:
        return False


def job(folder, run, *faults):
    env = demo_environment(DFX_DIR=str(folder / "segments"), TMPDIR=str(folder),
                           DFX_AGENT="1", DFX_RUN=run)  # fmt: skip
    return started([*TRAINING, *faults], folder, env)


def told(hook):
    """[(status, alert's labels, annotations)] in the order of arrival."""
    return [(a["status"], a["labels"], a["annotations"]) for b in hook.bodies for a in b["alerts"]]


def inhibited(manager, run):
    """Names of the alerts of a run that a page speaks for, now."""
    return {
        alert["labels"]["alertname"]
        for alert in manager.alerts()
        if alert["labels"].get("run") == run and alert["status"]["inhibitedBy"]
    }


@pytest.fixture(scope="module")
def live(prometheus_binary, alertmanager_binary, tmp_path_factory):
    """Both jobs at their last step, the page delivered, and time for anything else to come."""
    folder = tmp_path_factory.mktemp("alerts")
    port, manager_port = unused_port(), unused_port()
    env = demo_environment(DFX_DIR=str(folder / "segments"))
    with ExitStack() as stack:
        agent = stack.enter_context(serving(folder, unused_port(), env=env))
        hooks = {name: stack.enter_context(hooked()) for name in RECEIVERS}
        commands = shipped(folder / "assets", agent, port, manager_port, hooks)
        prometheus, process = (
            stack.enter_context(started([binary, *arguments], folder))
            for binary, arguments in zip(
                (prometheus_binary, alertmanager_binary), commands, strict=True
            )
        )
        manager = Alertmanager(process, manager_port)
        until(manager.is_ready, "Alertmanager is ready")
        until(lambda: answers(port), "Prometheus scrapes the agent")
        jobs = [
            stack.enter_context(job(folder, "sound")),
            stack.enter_context(job(folder, "diverging", "--fault", f"divergence:{ONSET}")),
        ]
        silenced: set[str] = set()

        def have_ended():
            silenced.update(inhibited(manager, "diverging"))
            return all(training.popen.poll() is not None for training in jobs)

        until(have_ended, "both jobs end", 280)
        for training in jobs:
            assert training.wait(10) == 0, training.errors
        until(lambda: told(hooks["pager"]), f"a page: {agent.snapshot()['runs']}", 60)
        time.sleep(GROUP_WAIT_SECONDS + 5)
        assert prometheus.popen.poll() is None, prometheus.errors
        yield SimpleNamespace(
            agent=agent, hooks=hooks, manager=manager, port=port, silenced=silenced
        )


def test_exactly_one_page_arrives_and_it_can_be_acted_on(live):
    pages = told(live.hooks["pager"])
    assert len(pages) == 1, pages
    ((status, labels, annotations),) = pages
    assert (status, labels["alertname"]) == ("firing", PAGE)
    assert {key: labels[key] for key in ("job", "run", "severity", "area")} == {
        "job": "dfx", "run": "diverging", "severity": "critical", "area": "stability",
    }  # fmt: skip
    runbook, _, anchor = annotations["runbook_url"].partition("#")
    with urllib.request.urlopen(runbook, timeout=10) as response:
        assert f'<section id="{anchor}">' in response.read().decode()
    board = urllib.parse.urlsplit(annotations["dashboard_url"])
    assert board.path == "/d/dfx-stability"
    query = urllib.parse.parse_qs(board.query)
    assert query["var-run"] == ["diverging"]
    assert query["to"] == ["now"]
    hour_ago_ms = (time.time() - 3600) * 1000
    assert abs(int(query["from"][0]) - hour_ago_ms) < 600_000


def test_the_page_says_since_which_step_every_symptom(live):
    ((_, _, annotations),) = told(live.hooks["pager"])
    result = re.findall(r"(\w+) (up|down) since step (\d+)", annotations["description"])
    assert len({symptom for symptom, _, _ in result}) >= 2
    for symptom, direction, step in result:
        where = f'run="diverging",symptom="{symptom}",direction="{direction}"'
        ((_, values),) = asked(live.port, f"dfx_symptom_onset_step{{{where}}}[10m]")
        assert step in {value for _, value in values}
    # a slow change before the fault may be among them; what made it a page came after
    steps = [int(step) for _, _, step in result]
    assert ONSET <= max(steps) <= STEPS


def test_what_the_page_speaks_for_does_not_arrive(live):
    arrived = {labels["alertname"] for hook in live.hooks.values() for _, labels, _ in told(hook)}
    assert not arrived & SINGLES
    known = {
        alert["labels"]["alertname"]: alert["status"]
        for alert in live.manager.alerts()
        if alert["labels"].get("run") == "diverging"
    }
    assert known[PAGE]["state"] == "active"
    # while the job ran: alerts of single symptoms end with it
    assert live.silenced & SINGLES
    assert "DfxTrainingUnstable" in live.silenced


def test_of_the_sound_run_over_the_same_steps_nothing_arrives(live):
    # how ranks share a busy machine is not this test's matter
    rows = [labels for name in ("pager", "chat") for _, labels, _ in told(live.hooks[name])]
    assert [row for row in rows if row.get("run") == "sound" and row["area"] != "balance"] == []
    reached = {labels["run"]: float(value[1]) for labels, value in asked(
        live.port, "max by (run) (max_over_time(dfx_step[10m]))")}  # fmt: skip
    assert min(reached["sound"], reached["diverging"]) >= STEPS - 5


def test_the_watchdog_repeats(live):
    def names():
        return {(status, labels["alertname"]) for status, labels, _ in told(live.hooks["deadman"])}

    until(lambda: ("firing", "DfxWatchdog") in names(), "the watchdog is told", 90)
