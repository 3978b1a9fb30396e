"""Every package that the agent imports is declared, with the oldest version that is tested."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("tensorboard",)  # those that `make test-oldest` installs


def declared() -> dict[str, str]:
    """Name -> lower bound of the dependencies and of ``EXTRAS``."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lists = [re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)]
    lists += [re.search(rf"^{extra} = \[(.*?)\]", text, re.MULTILINE) for extra in EXTRAS]
    assert all(lists)
    return dict(re.findall(r'"([\w-]+)>=([\w.]+)"', "".join(found[1] for found in lists if found)))


def pinned() -> dict[str, str]:
    text = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w-]+)==([\w.]+)", text, re.MULTILINE))


# where a package has another name than its module
_PACKAGES = {
    "google": {"googleapis-common-protos", "protobuf"},
    "opentelemetry": {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"},
    "prometheus_client": {"prometheus-client"},
    "pydantic_core": {"pydantic"},  # of the same makers, each release for one of the other
    "yaml": {"pyyaml"},
}
_OPTIONAL = {"torch"}  # of the demo and of jobs


def imported() -> set[str]:
    """Top-level modules of others that the package imports anywhere, but through a name."""
    found = set()
    for path in (ROOT / "dfx_agent").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    return found - sys.stdlib_module_names - {"dfx_agent"} - _OPTIONAL


def test_every_package_that_is_imported_is_declared() -> None:
    needed = set[str]().union(*(_PACKAGES.get(module, {module}) for module in imported()))
    assert needed >= {"anyio", "pydantic", "protobuf"}
    assert needed <= declared().keys()


def whole(version: str) -> tuple[int, ...]:
    """Without zeros at its end: 6.0 is 6.0.0."""
    return tuple(map(int, re.sub(r"(\.0)+$", "", version).split(".")))


def test_every_bound_is_the_version_that_is_tested() -> None:
    bounds, tested = declared(), pinned()
    assert len(bounds) >= 20
    assert {name: whole(version) for name, version in bounds.items()} == {
        name: whole(version) for name, version in tested.items()
    }
