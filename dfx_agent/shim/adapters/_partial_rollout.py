"""LightRFT's partial rollout (pull request 29), which logs nothing: its buffers and their ages.

Source: opendilab/LightRFT 6f3c161, ``PartialFastExperienceMaker``. Outputs that reach the token
budget are stored in the buffer "regen" with their micro-batch and generated further later. The
others are stored in "noregen". Both return their oldest samples first. LightRFT's samples have no
version, so the guest notes the step in which each was added. The metric names are dfx-agent's:
``catalogue/native/pipeline.yaml``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from dfx_agent.shim.adapters import _around
from dfx_agent.shim.adapters._around import span, wrap
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder

_BUFFERS = ("regen", "noregen")
_OUTPUTS = "output"  # the column of a buffer with one item per sample
_NAMES = "pipeline/partial"
# a step; None if it was unknown
_Step = int | None

_flows: WeakKeyDictionary[Any, _Flow] = WeakKeyDictionary()
# strategies whose length limit is the budget, and not the longest response
_strategies: WeakSet[Any] = WeakSet()


def patch(patches: PatchSet, module: ModuleType) -> None:
    maker = "PartialFastExperienceMaker"
    wrap(patches, module, f"{maker}.generate_samples", _generate)
    wrap(patches, module, f"{maker}._add_to_buffer", _around.after(_read_added))
    wrap(patches, module, f"{maker}._get_from_buffer", _around.after(_read_taken))
    wrap(patches, module, f"{maker}._regenerate_from_buffer", _around.after(_read_regenerated))


def is_under_budget(strategy: Any) -> bool:
    """Whether outputs of this strategy continue later, so that none is truncated at its limit."""
    return strategy in _strategies


class _Flow:
    """State of one maker: ages of the samples in its buffers, and counts of the current call."""

    def __init__(self) -> None:
        self.steps: dict[str, deque[_Step]] = {buffer: deque() for buffer in _BUFFERS}
        self.begin()

    def begin(self) -> None:
        self.num_outputs = self.num_hits = self.num_tokens = self.num_resumed = 0
        self.to_resume: list[int] = []  # positions in the samples that "regen" returned last
        self.ages: dict[str, list[int]] = {buffer: [] for buffer in _BUFFERS}

    def remove(self, buffer: str, num_samples: int, now: _Step) -> None:
        steps = self.steps[buffer]
        removed = [steps.popleft() for _ in range(min(num_samples, len(steps)))]
        self.ages[buffer] += _ages(removed, now)

    def waiting_ages(self, buffer: str, num_samples: int, now: _Step) -> list[int]:
        """Ages of the samples in the buffer; empty if other code has changed the buffer."""
        if len(self.steps[buffer]) != num_samples:
            self.steps[buffer] = deque([None] * num_samples)
        return _ages(self.steps[buffer], now)


def _generate(original: Any, switch: Switch) -> Any:
    inner = span("rollout", read=_read_begin)(original, switch)
    return _around.after(_read_end)(inner, switch)


def _read_begin(_writer: Recorder, maker: Any, *_: Any, **__: Any) -> None:
    _flow(maker).begin()
    _strategies.add(maker.strategy)


def _read_added(
    writer: Recorder, _result: Any, maker: Any, buffer_type: str, data_name: str, data: Any
) -> None:
    if data_name == _OUTPUTS:
        flow = _flow(maker)
        flow.num_outputs += len(data)
        flow.num_hits += len(_at_the_budget(maker, data))
        flow.steps[buffer_type].extend([writer.step] * len(data))


def _read_taken(
    writer: Recorder, removed: Any, maker: Any, buffer_type: str, *_: Any, **__: Any
) -> None:
    outputs = removed.get(_OUTPUTS)
    if isinstance(outputs, list):  # an empty buffer returns an empty tensor
        flow = _flow(maker)
        flow.remove(buffer_type, len(outputs), writer.step)
        if buffer_type == "regen":
            flow.to_resume = _at_the_budget(maker, outputs)


def _read_regenerated(_writer: Recorder, regenerated: Any, maker: Any, *_: Any, **__: Any) -> None:
    flow = _flow(maker)
    flow.num_resumed += len(flow.to_resume)
    flow.num_tokens += sum(len(_ids(regenerated[_OUTPUTS][i])) for i in flow.to_resume)
    flow.to_resume = []


def _read_end(writer: Recorder, _samples: Any, maker: Any, *_: Any, **__: Any) -> None:
    flow = _flow(maker)
    values: dict[str, float] = {
        "batch_ratio": maker.partial_percent,
        "budget_tokens": maker.max_token_budget,
        "budget_hits": flow.num_hits,
        "resumed": flow.num_resumed,
        "regenerated_tokens": flow.num_tokens,
    }
    if flow.num_outputs:
        values["budget_hit_ratio"] = flow.num_hits / flow.num_outputs
    for buffer, columns in zip(_BUFFERS, (maker.regen_buffer, maker.noregen_buffer), strict=True):
        num_samples = len(columns[_OUTPUTS])
        values[f"{buffer}/samples"] = num_samples
        waiting = flow.waiting_ages(buffer, num_samples, writer.step)
        values |= _spread(f"{buffer}/waiting_age", waiting)
        values |= _spread(f"{buffer}/taken_age", flow.ages[buffer])
    named = {f"{_NAMES}/{name}": value for name, value in values.items()}
    _around.report(writer, named, writer.step)


def _flow(maker: Any) -> _Flow:
    flow = _flows.get(maker)
    if flow is None:
        flow = _flows[maker] = _Flow()
    return flow


def _at_the_budget(maker: Any, outputs: Iterable[Any]) -> list[int]:
    """Positions of the outputs that used up the budget."""
    budget = maker.max_token_budget
    return [i for i, output in enumerate(outputs) if len(_ids(output)) >= budget]


def _ids(output: Any) -> Any:
    """Token ids of an EasyDict, a dict or an object."""
    return output["output_token_ids"] if isinstance(output, dict) else output.output_token_ids


def _ages(steps: Iterable[_Step], now: _Step) -> list[int]:
    return [now - step for step in steps if step is not None and now is not None]


def _spread(name: str, ages: list[int]) -> dict[str, float]:
    return {f"{name}/mean": sum(ages) / len(ages), f"{name}/max": max(ages)} if ages else {}
