"""Files of the version before are gone on from; those of an unknown one are refused in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dfx_agent.agent.stored.baselines import FILE
from dfx_agent.job.judging import Learned
from dfx_agent.judge.divergence.health import RunHealth

FORMAT_2 = Path(__file__).with_name("format_2.json")


def test_state_of_format_2_is_continued():
    """200 steps of ten metrics, a NaN loss and a blown-up norm in the newest (2026-11-22)."""
    stored = FILE.read(FORMAT_2.read_bytes()).health
    health = RunHealth()
    health.resume(stored)
    saved = health.save()
    symptoms, earlier = saved.bank.symptoms, stored.bank.symptoms
    assert repr(symptoms[: len(earlier)]) == repr(earlier)  # that agent did not know the last one
    calm = stored.bank.calm | {"reward up": 0}
    assert repr(saved) == repr(
        replace(stored, bank=replace(stored.bank, symptoms=symptoms, calm=calm))
    )
    written = json.loads(FORMAT_2.read_text())["health"]
    assert (health.state.row, health.state.step) == (199, written["last"])
    assert stored.bank.reward.num_rows_left == written["bank"]["reward"]["left"]
    (place, first), *_ = health.broken.breaks(is_scaled=False)
    assert (place, first.step, first.ranks) == ("loss", 197, {"0"})


# names of fields until 2026-11-27
EARLIER = {
    "explanations": "beside",
    "latest": "newest",
    "latest_row": "newest",
    "latest_seconds": "newest_seconds",
    "latest_step": "newest_step",
    "processed_seconds": "taken_seconds",
}


def renamed(value: Any) -> Any:
    """A document with the earlier names of its fields."""
    if isinstance(value, dict):
        return {EARLIER.get(name, name): renamed(part) for name, part in value.items()}
    return [renamed(part) for part in value] if isinstance(value, list) else value


def test_earlier_names_of_fields_are_read():
    saved = FILE.read(FORMAT_2.read_bytes()).health
    document = TypeAdapter(Learned).dump_python(saved, mode="json")
    earlier = renamed(document)
    assert earlier != document
    assert repr(TypeAdapter(Learned).validate_python(earlier)) == repr(saved)
