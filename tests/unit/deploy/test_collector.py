"""The Collector's configurations fit each other, and the hub that they lead to."""

from pathlib import Path

import pytest
import yaml

from dfx_agent.commands.serve.options import HUB_PORT
from dfx_agent.facts.envelope import LOGS_PATH

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "collector"
GATEWAY, BESIDE_HUB = (
    yaml.safe_load((FOLDER / name).read_text()) for name in ("gateway.yaml", "beside-hub.yaml")
)


@pytest.mark.parametrize("config", [GATEWAY, BESIDE_HUB], ids=["gateway", "beside the hub"])
def test_every_part_of_the_pipeline_is_configured(config):
    (signal,) = config["service"]["pipelines"]
    assert signal == "logs"
    for kind, names in config["service"]["pipelines"]["logs"].items():
        assert set(names) == set(config[kind])
    assert config["service"]["extensions"] == list(config["extensions"])


def test_the_gateway_leads_to_the_hubs_by_run():
    balancer = GATEWAY["exporters"]["loadbalancing"]
    assert balancer["routing_key"] == "traceID"
    port = BESIDE_HUB["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].rpartition(":")[2]
    hosts = balancer["resolver"]["static"]["hostnames"]
    assert {host.rpartition(":")[2] for host in hosts} == {port}
    exporter = BESIDE_HUB["exporters"]["otlphttp"]
    assert exporter["logs_endpoint"] == f"http://127.0.0.1:{HUB_PORT}{LOGS_PATH}"
    assert exporter["sending_queue"]["num_consumers"] == 1
