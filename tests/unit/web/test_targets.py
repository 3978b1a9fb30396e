"""Engines as targets for Prometheus' HTTP service discovery."""

from alert_scene import AGENT

from dfx_agent.job.engine_pool import pool_of
from dfx_agent.snapshot import EngineFacts, RunRow, Snapshot
from dfx_agent.web.targets import target_groups


def engine(replica, url, **known):
    return EngineFacts(replica, "", url, "up", 1.0, "vllm", **known)


def groups(*engines):
    run = RunRow("r", "verl", 0, 1.0, (), (), (), engines=pool_of(engines))
    return target_groups(Snapshot(1.0, AGENT, (run, RunRow("s", "", 0, 1.0, (), (), ()))))


def test_an_engine_is_a_target_with_the_labels_of_its_run():
    (group,) = groups(engine("1", "http://127.0.0.1:8001/metrics", pd="decode"))
    assert group.targets == ("127.0.0.1:8001",)
    assert group.labels == {
        "__scheme__": "http", "__metrics_path__": "/metrics", "run": "r", "node": AGENT.node,
        "role": "rollout", "replica": "1", "pd": "decode",
    }  # fmt: skip


def test_a_router_is_one_target_and_no_replica():
    url = "http://10.0.0.1:3000/engine_metrics"
    (group,) = groups(engine("0", url, worker="a"), engine("1", url, worker="b"))
    assert group.labels["__metrics_path__"] == "/engine_metrics"
    assert "replica" not in group.labels
