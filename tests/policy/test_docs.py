"""What people can type, set or scrape is written down where they look."""

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = re.compile(r"DFX_[A-Z][A-Z0-9_]*")


@pytest.fixture(scope="module")
def docs() -> str:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def verbs() -> list[str]:
    """One verb, one file: the folder is the registry."""
    commands = importlib.import_module("dfx_agent.commands")
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    return [name.replace("_", "-") for name in names if not name.startswith("_")]


def environment_variables() -> set[str]:
    """Every string constant in the product that spells a ``DFX_*`` variable, whole."""
    nodes = [
        node
        for path in (ROOT / "dfx_agent").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and VARIABLE.fullmatch(text)}


def test_every_verb_is_documented(docs: str) -> None:
    assert "demo" in verbs()
    assert [verb for verb in verbs() if f"dfx-agent {verb}" not in docs] == []


def test_every_environment_variable_is_documented(docs: str) -> None:
    known = environment_variables()
    assert "DFX_DIR" in known
    written = set(VARIABLE.findall(docs))
    assert sorted(known - written) == []


def test_every_metric_is_on_the_metrics_page() -> None:
    metrics = importlib.import_module("dfx_agent.catalogue.spec").by_name()
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert metrics
    assert sorted(name for name in metrics if f"`{name}" not in page) == []


def test_the_page_of_figures_is_what_the_benches_wrote() -> None:
    figures = importlib.import_module("bench.figures")
    rows = json.loads((ROOT / "bench" / "results.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    assert page == figures.page(rows), "run `make generate`"


def test_metrics_page_is_what_the_catalogue_says() -> None:
    generated = subprocess.run(
        [sys.executable, "-m", "bench.metrics_page"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert generated.returncode == 0, generated.stderr
    committed = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert committed == generated.stdout, "docs/metrics.md is stale: run `make generate`"


def test_the_page_of_metrics_by_framework_is_what_the_catalogue_says() -> None:
    page = (ROOT / "docs" / "reference" / "metrics-by-framework.md").read_text(encoding="utf-8")
    rendered = importlib.import_module("bench.frameworks_page").render()
    assert page == rendered, "run `make generate`"
