"""A job on two hosts, started by the two lines of docs/how-to/many_nodes.md: one page, one judge.

Hosts are namespaces. One job takes one fault after the other; the last one ends it.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack

import pytest
from alert_receivers import alertmanager, hooked
from live_processes import unused_port
from namespaces import hosts, needs_hosts
from node_jobs import HUB_PORT, RUN, TOKEN, NodesJob, started_job, steady, stop
from scripted_page import texts

pytestmark = needs_hosts

LATE_SECONDS = 120.0


class Scene:
    """The job, and what the pager was told: each alert is a message of its own."""

    def __init__(self, job, hook):
        self.job, self.hook = job, hook

    def paged(self):
        """Every page that was sent, in order; none is of another run."""
        assert {run for _, _, run in self.hook.told} <= {RUN}
        return [name for status, name, _ in self.hook.told if status == "firing"]


@pytest.fixture(scope="module")
def scene(alertmanager_binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    with ExitStack() as stack:
        found = stack.enter_context(hosts(folder, "node-a", "node-b"))
        hook, here = stack.enter_context(hooked()), found[0].here
        served = alertmanager(
            alertmanager_binary, folder, unused_port(), hook, host=here, group_by="..."
        )
        job = NodesJob(folder, found, found[0])
        reported = {"DFX_ALERTMANAGER": stack.enter_context(served).url}
        stack.enter_context(started_job(job, "auto", ["node-a", "node-b"], 0.6, reported))
        yield Scene(job, hook)


def test_one_page_shows_all_ranks(scene):
    job = scene.job
    whose = {"0": "node-a", "1": "node-a", "2": "node-b", "3": "node-b"}
    job.until(lambda: job.ranks() == whose, "four ranks", LATE_SECONDS)
    steady(job)
    assert {row["node"] for row in job.asked()["agent"]["nodes"]} == {"node-a", "node-b"}
    urls = sorted(group["targets"][0] for group in job.asked("/api/v1/targets"))
    assert urls == ["node-a:9931", "node-b:9931"]
    assert f"joined the hub http://node-a:{HUB_PORT}" in job.launchers["node-b"].errors


def named(job, rank):
    """The straggler verdict once it is found, or has abstained for long since the host is busy."""
    found = job.found()
    assert {(kind, *row["ranks"]) for kind, row in found.items()} <= {("straggler", rank)}
    verdict = job.verdicts().get("straggler", {"state": "", "cause": ""})
    is_busy = verdict["cause"] == "busy host" and job.step() >= job.first_step("slow") + 20
    return verdict if verdict["state"] == "found" or is_busy else None


def diagnosed(job, run_cli):
    """What `dfx-agent diagnose` says of each kind, asked of the hub; something was found."""
    url = f"http://{job.hub.address}:{HUB_PORT}"
    words = ("--json", "--watch", "30", "--url", url, "--token-file", str(job.token_file))
    done = run_cli("diagnose", *words, env={**os.environ, "NO_PROXY": "*"})
    assert done.returncode == 1, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    return {verdict["kind"]: verdict["summary"] for verdict in run["verdicts"]}


def test_a_slow_rank_on_the_second_host(scene, run_cli):
    job = scene.job
    job.order("slow 3 1.3")
    row = job.until(lambda: named(job, "3"), "the straggler", LATE_SECONDS)
    if row["state"] != "found":
        job.order("")
        pytest.skip(f"this machine is busy with others, so that nobody is named: {row['summary']}")
    assert row["summary"].startswith("Rank 3 on node-b makes other ranks wait")
    assert row["stage"] == "forward"
    assert "Rank 3 on node-b makes other ranks wait" in diagnosed(job, run_cli)["straggler"]
    job.until(lambda: scene.paged() == ["DfxStraggler"], "its page", LATE_SECONDS)
    job.order("")


def shown_by_the_hub(job, open_page, artifacts):
    """Its page: nodes with the culprit's first, the culprit, and ranks whose timeline came."""
    address = f"http://{job.hub.address}:{HUB_PORT}/?token={TOKEN}"
    page = open_page(address)
    blamed = page.locator("#job-nodes [data-blame='warning'], #job-nodes [data-blame='critical']")
    job.until(lambda: blamed.count() == 1, "the culprit on the page")

    def drawn():
        page.goto("about:blank")  # a response of the page before cannot be read after a reload
        with page.expect_response(lambda answer: "/timeline?" in answer.url) as found:
            page.goto(address)
        ranks = {row["rank"] for row in found.value.json()}
        return ranks if "3" in ranks else None

    ranks = job.until(drawn, "the timeline of its rank, from its node")
    job.until(lambda: blamed.count() == 1, "the culprit again")
    page.screenshot(path=artifacts / "page-hub.png", full_page=True)
    return texts(page, ".node-name"), blamed.get_attribute("aria-label"), ranks


def test_a_rank_that_is_stopped_on_the_second_host(scene, run_cli, open_page, artifacts):
    job = scene.job
    steady(job)
    before = scene.paged()
    go_on = stop(job, 3)
    row = job.until(job.found, "the hang", LATE_SECONDS)
    assert set(row) == {"hang"}
    assert row["hang"]["ranks"] == ["3"]
    assert row["hang"]["summary"].startswith("Rank 3 on node-b has been suspended (state T) for ")
    assert diagnosed(job, run_cli)["hang"].startswith(
        "Rank 3 on node-b has been suspended (state T) for "
    )
    job.until(lambda: scene.paged() == [*before, "DfxStepStalled"], "its page", LATE_SECONDS)
    names, culprit, ranks = shown_by_the_hub(job, open_page, artifacts)
    go_on()
    assert names == ["node-b", "node-a"]
    assert "rank 3 on node-b, local rank 1" in culprit
    assert ranks == {"0", "1", "2", "3"}
    steady(job, 4)
    assert scene.paged() == [*before, "DfxStepStalled"]


def test_a_rank_that_is_killed_on_the_second_host_ends_the_job(scene):
    """The hub ends with the job, and not before it was told who died."""
    job = scene.job
    before = scene.paged()
    os.kill(job.pid(3), signal.SIGKILL)
    for process in job.launchers.values():
        assert process.wait(LATE_SECONDS) != 0
    job.until(lambda: scene.paged() == [*before, "DfxRankDied"], "its page")
    (alert,) = [a for body in scene.hook.bodies for a in body["alerts"]
                if a["labels"]["alertname"] == "DfxRankDied"]  # fmt: skip
    assert "Rank 3 on node-b was killed by signal 9" in alert["annotations"]["description"]
