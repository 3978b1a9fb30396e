"""A setting is documented, and the hub honours it or is known not to need it."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from dfx_agent.agent.config import Config

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/reference/settings.md", "docs/alerting.md")
SETTINGS = [setting.name for setting in fields(Config)]
HUB = ("hub/hub_service.py", "hub/__init__.py", "serve/delivery.py",
       "serve/options.py")  # fmt: skip
# a hub reads no segments and no devices, and it pushes to nobody
NODE_ONLY = {
    "directory", "poll_seconds", "keep_dead_seconds", "linger_seconds", "track_with",
    "tracker_kwargs", "otlp_endpoint", "otlp_signals", "otlp_seconds", "engines", "find_engines",
    "peak_tflops", "model_config", "history_directory", "history_days", "history_mib",
}  # fmt: skip


def variable(setting: str) -> str:
    return "DFX_DIR" if setting == "directory" else f"DFX_{setting.upper()}"


@pytest.fixture(scope="module")
def rows() -> list[str]:
    """Rows of the tables of settings."""
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    return [line for text in texts for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_stands_in_a_table_with_its_variable(setting: str, rows: list[str]) -> None:
    names = re.compile(rf"\b{setting}\b.*\b{variable(setting)}\b")
    assert [row for row in rows if names.search(row)], f"no row with both names in {PAGES}"


def read_of_settings(source: str) -> set[str]:
    """Names of settings that code reads as an attribute: ``config.listen``."""
    tree = ast.parse(source)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if ast.unparse(node.value).endswith("config")}


def test_the_hub_honours_every_setting_that_is_not_of_a_node() -> None:
    """A new setting is read on a hub, or named above with what a hub does not do."""
    folder = ROOT / "dfx_agent" / "commands"
    honoured = set().union(*(read_of_settings((folder / name).read_text()) for name in HUB))
    assert set(SETTINGS) - NODE_ONLY <= honoured
    assert set(SETTINGS) >= NODE_ONLY
