"""Commands in the deployment examples are real ones: the command line's own parser reads them."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from dfx_agent.commands import build_parser

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
POD_FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def containers():
    for path in POD_FILES:
        for document in yaml.safe_load_all(path.read_text()):
            yield from document["spec"]["containers"]


def commands():
    for container in containers():
        words = [*container["command"], *container.get("args", [])]
        yield words if words[0] != "sh" else shlex.split(words[-1].replace("\n", " ; "))
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
    assert len(OURS) == len(POD_FILES) + 2


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
    assert any(mount["mountPath"] == "/dev/shm" for mount in container["volumeMounts"])
