"""Ray: methods of actors are stages, and a driver that waits has a segment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import ModuleType, SimpleNamespace

import pytest

import dfx_agent.shim as dfx
from dfx_agent.shim import adapters, recorder
from dfx_agent.shim.adapters import ray
from dfx_agent.shim.lifecycle import guest
from dfx_agent.shim.patches import PatchSet
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import FAILED, KIND_MASK, STAGE

SCRIPT_MODE, WORKER_MODE = 0, 1


class Worker(ModuleType):
    """As much of ``ray._private.worker`` of 2.60 as is touched."""

    SCRIPT_MODE = SCRIPT_MODE

    class Worker:
        mode = SCRIPT_MODE
        is_asyncio = False
        is_actor = True

        @property
        def actor_id(self) -> SimpleNamespace:
            return SimpleNamespace(is_nil=lambda: not self.is_actor)

        @property
        def core_worker(self) -> SimpleNamespace:
            return SimpleNamespace(current_actor_is_asyncio=lambda: self.is_asyncio)

        def get_objects(self, refs: list[int]) -> list[int]:
            return refs

    def __init__(self) -> None:
        super().__init__("ray._private.worker")
        self.global_worker = self.Worker()
        self.titles: list[str] = []

    @contextmanager
    def _changeproctitle(self, title: str, next_title: str) -> Iterator[None]:
        self.titles.append(title)
        yield
        self.titles.append(next_title)


@pytest.fixture
def module(monkeypatch) -> Iterator[Worker]:
    guest.stop()  # takes back every hook
    module = Worker()
    # an instance's attribute, as functions of a module are
    module._changeproctitle = module._changeproctitle
    parts = [PatchSet(f"ray.test.{part}") for part in ray.PARTS]
    with monkeypatch.context() as hooks:
        hooks.delenv("DFX_DISABLE_HOOKS", raising=False)
        for patches, (_, change) in zip(parts, ray.PARTS.values(), strict=True):
            patches.install(lambda p, change=change: change(p, module))
    yield module
    for patches in parts:
        patches.restore()


@pytest.fixture
def reader(dfx_dir) -> Iterator[SegmentReader]:
    assert dfx.init(run="r", role="Sampler", rank=0)
    with closing(SegmentReader(recorder.current.path)) as segment:
        yield segment
    guest.stop()


def call(module: Worker, title: str) -> None:
    with module._changeproctitle(title, "ray::Sampler"):
        pass


def stages(reader: SegmentReader) -> list[str]:
    return [reader.name(r[9]) or "" for r in reader.poll() if r[8] & KIND_MASK == STAGE]


def test_a_method_of_an_actor_is_a_stage_and_ray_sees_the_same_titles(module, reader):
    call(module, "ray::Sampler.rollout")
    assert stages(reader) == ["rollout"]
    assert module.titles == ["ray::Sampler.rollout", "ray::Sampler"]


def test_the_stage_ends_with_an_exception_that_the_job_sees(module, reader):
    with pytest.raises(KeyError), module._changeproctitle("ray::Sampler.rollout", "ray::Sampler"):
        raise KeyError
    (record,) = (r for r in reader.poll() if r[8] & KIND_MASK == STAGE)
    assert record[8] & FAILED


@pytest.mark.parametrize(
    ("title", "change"),
    [
        ("ray::Sampler.__init__", {}),
        ("ray::task", {}),
        ("ray::Sampler.rollout", {"is_actor": False}),
        ("ray::Sampler.rollout", {"is_asyncio": True}),
    ],
)
def test_what_is_no_method_of_a_synchronous_actor_is_no_stage(module, reader, title, change):
    for name, value in change.items():
        setattr(type(module.global_worker), name, value)
    try:
        call(module, title)
    finally:
        type(module.global_worker).is_actor = True
        type(module.global_worker).is_asyncio = False
    assert stages(reader) == []


def test_a_framework_marks_its_own_stages(module, reader, monkeypatch):
    monkeypatch.setattr(adapters, "has_framework", lambda: True)
    call(module, "ray::Sampler.rollout")
    assert stages(reader) == []


def test_what_ray_has_changed_costs_a_count_and_no_stage(module, reader):
    module.global_worker = None
    call(module, "ray::Sampler.rollout")
    assert stages(reader) == []
    assert reader.live_words()[4] == 1


@pytest.mark.parametrize(("mode", "begins"), [(SCRIPT_MODE, True), (WORKER_MODE, False)])
def test_a_driver_that_waits_for_results_begins_to_record(module, monkeypatch, mode, begins):
    started = []
    monkeypatch.setattr(recorder, "current", None)
    monkeypatch.setattr(recorder, "start_late", lambda **known: started.append(known))
    module.global_worker.mode = mode
    assert module.global_worker.get_objects([7]) == [7]
    assert bool(started) == begins


def test_an_armed_process_without_torch_records_nothing(module, monkeypatch):
    monkeypatch.setattr(recorder, "current", None)
    monkeypatch.setattr(recorder, "start_late", lambda **known: pytest.fail("began"))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    call(module, "ray::Sampler.rollout")
