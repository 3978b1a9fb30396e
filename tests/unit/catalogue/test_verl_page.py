"""The page of verl's metrics explains names that verl has and that are mapped."""

import re
from itertools import product
from pathlib import Path

from dfx_agent.catalogue.native import load

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "verl-metrics.md"
FIRST_CELL = re.compile(r"^\| (`[^|]+) \|", re.MULTILINE)


def names_of_the_page() -> list[str]:
    """Each name of the tables; `{a,b}` stands for each, `{name}` for any, `max` for a last part."""
    names: list[str] = []
    for cell in FIRST_CELL.findall(PAGE.read_text(encoding="utf-8")):
        first, *ends = re.findall(r"`([^`]+)`", cell)
        parts = [part.strip("{}").split(",") for part in re.split(r"(\{[^}]+\})", first)]
        whole = ["".join(chosen) for chosen in product(*parts)]
        names += [*whole, *(f"{first.rpartition('/')[0]}/{end}" for end in ends)]
    return names


def test_every_name_on_the_page_of_verl_is_mapped() -> None:
    names = names_of_the_page()
    assert len(names) > 40
    assert {"actor/ppo_kl", "critic/score/min", "timing_per_token_ms/ref"} <= set(names)
    assert [name for name in names if load("verl").find(name) is None] == []
