"""Commands in the deployment examples are real ones: the command line's own parser reads them."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from dfx_agent.commands import build_parser
from dfx_agent.hub import access

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
MANIFESTS = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
PODS = [document for document in MANIFESTS if document["kind"] == "Pod"]
MONITORS = [document for document in MANIFESTS if document["kind"] == "PodMonitor"]
SERVICES = [document for document in MANIFESTS if document["kind"] == "Service"]
PROBES = ("readinessProbe", "livenessProbe", "startupProbe")


def named(document):
    return document["metadata"]["name"]


def containers():
    for pod in PODS:
        yield from pod["spec"]["containers"]


def words_of(container):
    words = [*container["command"], *container.get("args", [])]
    return words if words[0] != "sh" else shlex.split(words[-1].replace("\n", " ; "))


def commands():
    yield from map(words_of, containers())
    for name in ("systemd/dfx-agent.service", "slurm/train.sbatch"):
        text = (DEPLOY / name).read_text().replace("\\\n", " ")
        yield from (shlex.split(line) for line in text.splitlines() if re.match(r"srun|Exec", line))


def ours(words):
    """The words after the name of our program, up to the end of its command."""
    at = next((i for i, word in enumerate(words) if word.endswith("dfx-agent")), None)
    if at is None:
        return None
    rest = words[at + 1 :]
    return rest[: rest.index(";")] if ";" in rest else rest


OURS = [found for words in commands() if (found := ours(words))]


def test_every_example_is_looked_at():
    assert len(OURS) == len(PODS) + 2


@pytest.mark.parametrize("words", OURS, ids=lambda words: words[0])
def test_the_command_line_takes_it(words):
    placed = ["1" if word == "$pid" else word for word in words]
    args = build_parser().parse_args(placed)
    # off loopback the agent asks for a token
    assert args.listen.startswith("127.") or args.token_file


@pytest.mark.parametrize("container", [*containers()], ids=lambda c: c["name"])
def test_no_container_asks_for_more_than_its_user_has(container):
    context = container.get("securityContext", {})
    assert not context.get("privileged")
    assert "add" not in context.get("capabilities", {})
    reads = container["name"] != "hub"  # it reads no segments
    assert reads == any(mount["mountPath"] == "/dev/shm" for mount in container["volumeMounts"])


def test_every_manifest_is_looked_at():
    assert len(PODS) == 3
    assert len(MONITORS) == len(SERVICES) == 1
    assert len(MANIFESTS) == 5
    assert {d["apiVersion"] for d in PODS} == {"v1"}
    assert {d["apiVersion"] for d in MONITORS} == {"monitoring.coreos.com/v1"}


@pytest.mark.parametrize("pod", PODS, ids=named)
def test_what_a_container_names_is_in_its_pod(pod):
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert len(volumes) == len(pod["spec"]["volumes"])
    for container in pod["spec"]["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        ports = {port["name"] for port in container.get("ports", [])}
        probes = [container[probe]["httpGet"] for probe in PROBES if probe in container]
        assert {probe["port"] for probe in probes} <= ports


def test_what_kubernetes_probes_needs_no_token():
    paths = {c[probe]["httpGet"]["path"] for c in containers() for probe in PROBES if probe in c}
    assert paths == {"/readyz"}
    assert paths <= access.OPEN_PATHS


@pytest.mark.parametrize("pod", PODS, ids=named)
def test_the_monitor_scrapes_the_pod_with_the_token_that_its_agent_asks_for(pod):
    (monitor,) = MONITORS
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = [p for c in pod["spec"]["containers"] for p in c.get("ports", [])]
    assert endpoint["port"] in {port["name"] for port in ports}
    credentials = endpoint["authorization"]["credentials"]
    (secret,) = (v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v)
    assert credentials["name"] == secret
    files = [a.token_file for c in pod["spec"]["containers"] for a in arguments_of(c)]
    mounts = [m["mountPath"] for c in pod["spec"]["containers"] for m in c["volumeMounts"]]
    assert [file.rpartition("/")[0] in mounts for file in files] == [True]
    assert files[0].rpartition("/")[2] == credentials["key"]
    # an annotation carries no token: whoever goes by it is refused
    assert "annotations" not in pod["metadata"]
    assert {"targetLabel": "job", "replacement": "dfx"} in endpoint["relabelings"]


def test_agents_of_several_pods_find_the_hub_by_its_service():
    """The variable is in the manifests, out of use until somebody takes away the #."""
    (service,), (hub,) = SERVICES, [pod for pod in PODS if named(pod) == "dfx-hub"]
    selector, (port,) = service["spec"]["selector"], service["spec"]["ports"]
    assert selector.items() <= hub["metadata"]["labels"].items()
    (parsed,) = arguments_of(hub["spec"]["containers"][0])
    assert parsed.listen.endswith(f":{port['port']}")
    url = f"http://{named(service)}:{port['port']}"
    for name in ("observed-trainer.yaml", "attach-sidecar.yaml"):
        text = (DEPLOY / "kubernetes" / name).read_text().replace("# env:", "env:")
        env = [c.get("env") for c in yaml.safe_load(text)["spec"]["containers"]]
        assert [{"name": "DFX_HUB", "value": url}] in env


def arguments_of(container):
    words = ours(words_of(container))
    if words:
        yield build_parser().parse_args(["1" if word == "$pid" else word for word in words])
