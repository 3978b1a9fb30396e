"""What is lost between the hosts of a job: an agent, the way to the hub, the hub, a cable.

Hosts are namespaces. The clocks of the second one are far from the others': its monotonic clock by
a day, its wall clock by five minutes. The hub is on a third host.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest
from alert_receivers import alertmanager, hooked
from live_processes import DFX_AGENT, until, unused_port
from namespaces import hosts, needs_hosts
from node_jobs import HUB_PORT, RUN, NodesJob, inner, settings, started_job, steady, stop

pytestmark = needs_hosts

LATE_SECONDS = 120.0
HUB = f"http://hub:{HUB_PORT}"


class Scene:
    """The job, who was told, and the hub that is there now."""

    def __init__(self, stack, job, hook, manager):
        self.job, self.hook, self.manager = job, hook, manager
        self._stack, self._hub = stack, None
        self.start_hub()

    def start_hub(self):
        words = [*DFX_AGENT, "hub", "--token-file", str(self.job.token_file)]
        words += ["--alertmanager", self.manager]
        self._hub = self._stack.enter_context(self.job.hub.started(words, {"NO_PROXY": "*"}))
        until(lambda: f"hub {HUB}/" in self._hub.output, "the hub")

    def kill_hub(self):
        inner(self._hub).kill()
        self._hub.wait()

    def start_agent(self, name):
        env = settings(self.job, HUB, DFX_ALERTMANAGER=self.manager)
        self._stack.enter_context(self.job.hosts[name].started([*DFX_AGENT, "serve"], env))

    def says(self, text):
        """Until the hub says this, and meanwhile nothing is found."""

        def look():
            assert self.job.found() == {}
            return text in self.job.verdicts().get("hang", {"summary": ""})["summary"]

        self.job.until(look, text, LATE_SECONDS)

    def paged(self):
        """Every page that was sent; none is of another run."""
        assert {run for _, _, run in self.hook.told} <= {RUN}
        return [name for status, name, _ in self.hook.told if status == "firing"]


@pytest.fixture(scope="module")
def scene(alertmanager_binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lost")
    with ExitStack() as stack:
        ahead = {"node-b": 86_400}
        found = stack.enter_context(hosts(folder, "node-a", "node-b", "hub", ahead=ahead))
        found[1].set_wall_clock(300)
        hook, here = stack.enter_context(hooked()), found[0].here
        served = alertmanager(
            alertmanager_binary, folder, unused_port(), hook, host=here, group_by="..."
        )
        manager = stack.enter_context(served).url
        job = NodesJob(folder, found[:2], found[2])
        known = Scene(stack, job, hook, manager)
        reported = {"DFX_ALERTMANAGER": manager}
        stack.enter_context(started_job(job, HUB, ["node-a", "node-b"], 0.6, reported))
        job.until(lambda: len(job.ranks()) == 4, "four ranks", LATE_SECONDS)
        yield known


@contextmanager
def calm_after(scene):
    """A sound job before and after it, and nobody is told anything."""
    steady(scene.job, 4)
    paged = scene.paged()
    yield
    steady(scene.job, 4)
    assert scene.paged() == paged


def test_the_way_to_the_hub_is_cut(scene):
    job = scene.job
    with calm_after(scene):
        job.hosts["node-b"].set_route(job.hub.address, is_open=False)
        scene.says("This hub has had no connection to node-b for ")
        job.hosts["node-b"].set_route(job.hub.address, is_open=True)


def test_an_agent_is_killed_and_another_one_comes(scene):
    job = scene.job
    with calm_after(scene):
        inner(job.launchers["node-b"]).kill()
        scene.says("The agent of node-b has sent nothing for ")
        assert "ranks 2, 3 still take part" in job.verdicts()["hang"]["summary"]
        scene.start_agent("node-b")


def test_a_hub_is_killed_while_a_rank_is_stopped_and_the_next_one_says_the_same(scene):
    job = scene.job
    steady(job, 4)
    go_on = stop(job, 3)
    job.until(lambda: job.found("hang"), "the hang", LATE_SECONDS)
    job.until(lambda: scene.paged() == ["DfxStepStalled"], "its page", LATE_SECONDS)
    scene.kill_hub()
    scene.start_hub()
    row = job.until(job.found, "the hang again", LATE_SECONDS)
    assert set(row) == {"hang"}
    assert row["hang"]["ranks"] == ["3"]
    job.until(lambda: "on node-b" in job.verdicts()["hang"]["summary"], "its node", LATE_SECONDS)
    go_on()
    steady(job, 4)
    assert scene.paged() == ["DfxStepStalled"]


def test_a_cable_is_pulled(scene):
    """The node is lost and paged; the job is judged again when it is back."""
    job = scene.job
    steady(job, 4)
    job.hosts["node-b"].set_link(is_up=False)
    row = job.until(lambda: job.found("crash"), "the lost node", LATE_SECONDS)
    assert (row["crash"]["cause"], row["crash"]["ranks"]) == ("node lost", ["2", "3"])
    job.until(lambda: "DfxRankDied" in scene.paged(), "its page", LATE_SECONDS)
    job.hosts["node-b"].set_link(is_up=True)
    steady(job, 4)


def test_a_collective_that_does_not_match_on_the_second_host(scene):
    job = scene.job
    steady(job, 4)
    job.order("mismatch 3")
    row = job.until(job.found, "the mismatch", LATE_SECONDS)
    assert set(row) == {"hang"}, row
    assert (row["hang"]["cause"], row["hang"]["ranks"]) == ("mismatched collectives", ["3"]), row
    assert "rank 3 on node-b" in row["hang"]["summary"]
    job.until(lambda: "DfxStepStalled" in scene.paged(), "its page", LATE_SECONDS)
    assert set(scene.paged()) <= {"DfxStepStalled", "DfxRankDied"}
