"""LightRFT's partial rollout (pull request 29), which logs nothing: its buffers, and their ages.

Source: opendilab/LightRFT 6f3c161, ``PartialFastExperienceMaker``. Outputs as long as the token
budget go into the buffer "regen" with their micro-batch and are generated on later, the others into
"noregen"; both give their oldest first. No sample has a version there, so each is stamped with the
step in which it came. The names are ours: ``catalogue/native/pipeline.yaml``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from dfx_agent.shim.adapters import _around
from dfx_agent.shim.adapters._around import put, span
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder

_BUFFERS = ("regen", "noregen")
_OUTPUTS = "output"  # of a buffer's columns, the one with one item a sample
_NAMES = "pipeline/partial"
# a step, or None where it was not known
_Step = int | None

_flows: WeakKeyDictionary[Any, _Flow] = WeakKeyDictionary()
# what a maker generates with: its limit on outputs is the budget, not the longest response
_strategies: WeakSet[Any] = WeakSet()


def patch(patches: PatchSet, module: ModuleType) -> None:
    maker = "PartialFastExperienceMaker"
    put(patches, module, f"{maker}.generate_samples", _generate)
    put(patches, module, f"{maker}._add_to_buffer", _around.after(_read_added))
    put(patches, module, f"{maker}._get_from_buffer", _around.after(_read_taken))
    put(patches, module, f"{maker}._regenerate_from_buffer", _around.after(_read_regenerated))


def is_under_budget(strategy: Any) -> bool:
    """Whether outputs of this strategy go on later: at their limit they are not truncated."""
    return strategy in _strategies


class _Flow:
    """Of one maker: when the samples in its buffers came, and what the call that runs has done."""

    def __init__(self) -> None:
        self.steps: dict[str, deque[_Step]] = {buffer: deque() for buffer in _BUFFERS}
        self.begin()

    def begin(self) -> None:
        self.num_outputs = self.num_hits = self.num_tokens = self.num_resumed = 0
        self.to_resume: list[int] = []  # places in what was taken out of "regen" last
        self.ages: dict[str, list[int]] = {buffer: [] for buffer in _BUFFERS}

    def take(self, buffer: str, num_samples: int, now: _Step) -> None:
        steps = self.steps[buffer]
        taken = [steps.popleft() for _ in range(min(num_samples, len(steps)))]
        self.ages[buffer] += _ages(taken, now)

    def waiting_ages(self, buffer: str, num_samples: int, now: _Step) -> list[int]:
        """Of the ``num_samples`` in the buffer; nothing of one that somebody else has changed."""
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
    writer: Recorder, taken: Any, maker: Any, buffer_type: str, *_: Any, **__: Any
) -> None:
    outputs = taken.get(_OUTPUTS)
    if isinstance(outputs, list):  # of an empty buffer it is an empty tensor
        flow = _flow(maker)
        flow.take(buffer_type, len(outputs), writer.step)
        if buffer_type == "regen":
            flow.to_resume = _at_the_budget(maker, outputs)


def _read_regenerated(_writer: Recorder, regenerated: Any, maker: Any, *_: Any, **__: Any) -> None:
    flow = _flow(maker)
    flow.num_resumed += len(flow.to_resume)
    flow.num_tokens += sum(len(_ids(regenerated[_OUTPUTS][i])) for i in flow.to_resume)
    flow.to_resume = []


def _read_end(writer: Recorder, _samples: Any, maker: Any, *_: Any, **__: Any) -> None:
    flow = _flow(maker)
    told: dict[str, float] = {
        "batch_ratio": maker.partial_percent,
        "budget_tokens": maker.max_token_budget,
        "budget_hits": flow.num_hits,
        "resumed": flow.num_resumed,
        "regenerated_tokens": flow.num_tokens,
    }
    if flow.num_outputs:
        told["budget_hit_ratio"] = flow.num_hits / flow.num_outputs
    for buffer, columns in zip(_BUFFERS, (maker.regen_buffer, maker.noregen_buffer), strict=True):
        num_samples = len(columns[_OUTPUTS])
        told[f"{buffer}/samples"] = num_samples
        waiting = flow.waiting_ages(buffer, num_samples, writer.step)
        told |= _spread(f"{buffer}/waiting_age", waiting)
        told |= _spread(f"{buffer}/taken_age", flow.ages[buffer])
    named = {f"{_NAMES}/{name}": value for name, value in told.items()}
    _around.report(writer, named, writer.step)


def _flow(maker: Any) -> _Flow:
    flow = _flows.get(maker)
    if flow is None:
        flow = _flows[maker] = _Flow()
    return flow


def _at_the_budget(maker: Any, outputs: Iterable[Any]) -> list[int]:
    """Places of the outputs that used it up."""
    budget = maker.max_token_budget
    return [i for i, output in enumerate(outputs) if len(_ids(output)) >= budget]


def _ids(output: Any) -> Any:
    """Of an EasyDict, of a plain dict, or of an object."""
    return output["output_token_ids"] if isinstance(output, dict) else output.output_token_ids


def _ages(steps: Iterable[_Step], now: _Step) -> list[int]:
    return [now - step for step in steps if step is not None and now is not None]


def _spread(name: str, ages: list[int]) -> dict[str, float]:
    return {f"{name}/mean": sum(ages) / len(ages), f"{name}/max": max(ages)} if ages else {}
