"""Agents of nodes as targets of Prometheus."""

import json
import os

import pytest

from dfx_agent.hub.otlp.intake import AgentTarget
from dfx_agent.web.targets import TargetsFile, agent_groups

NODE_A = AgentTarget("a", "https://a.example:9931", ("r1", "r2"))
ALONE = AgentTarget("b", "http://127.0.0.1:9931", ())


def test_a_target_is_listed_as_prometheus_reads_it():
    (group,) = agent_groups((NODE_A,), is_local=False)
    assert group.targets == ("a.example:9931",)
    assert group.labels == {
        "__scheme__": "https",
        "__metrics_path__": "/metrics",
        "__meta_dfx_node": "a",
        "__meta_dfx_runs": ",r1,r2,",
    }


def test_an_agent_on_loopback_is_a_target_on_its_own_machine_alone():
    assert agent_groups((ALONE,), is_local=False) == ()
    assert len(agent_groups((ALONE,), is_local=True)) == 1


@pytest.mark.parametrize("url", ["", "x", "http://", "http://a:99999", "ftp://a:1", "http://[a:1"])
def test_what_is_no_address_is_no_target(url):
    assert agent_groups((AgentTarget("a", url, ()),), is_local=False) == ()


def test_the_file_is_replaced_as_a_whole_and_only_for_news(tmp_path):
    path = tmp_path / "targets.json"
    file = TargetsFile(str(path))
    groups = agent_groups((NODE_A,), is_local=False)
    file.write(groups)
    assert json.loads(path.read_text())[0]["targets"] == ["a.example:9931"]
    before = path.stat().st_ino
    file.write(groups)
    assert path.stat().st_ino == before
    file.write(())
    assert json.loads(path.read_text()) == []
    assert os.listdir(tmp_path) == ["targets.json"]
