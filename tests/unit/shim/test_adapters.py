"""The loader of adapters: wakes with the framework, reports its parts, never raises."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from dfx_agent.attach.bring import _packed_guest
from dfx_agent.attach.payload import guest_files
from dfx_agent.shim import adapters, imports, patches, recorder
from dfx_agent.shim.adapters import _around  # noqa: F401 (found no more once the folder is another)
from dfx_agent.shim.lifecycle import guest
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import GAUGE, KIND_MASK, STAGE

ROOT = Path(__file__).resolve().parents[3]

FRAMEWORK = """
__version__ = "1.2"
def act(): return "acted"
async def act_later(): return "acted later"
"""
ADAPTER = """
from dfx_agent.shim.adapters._around import span
KIND = {kind!r}
def _patch(patches, module):
    patches.replace(module, "act", span("rollout"))
    patches.replace(module, "act_later", span("reward"))
def _patch_missing(patches, module):
    patches.replace(module, "gone_since_2", span("rollout"))
def _break(patches, module):
    patches.replace(module, "act", span("rollout"))
    raise RuntimeError("adapter bug")
PARTS = {{
    "acting": ("{name}", _patch),
    "missing": ("{name}", _patch_missing),
    "broken": ("{name}", _break),
    "late": ("{name}_late", _patch),
}}
"""


class Job:
    """A recording process that has frameworks of ours, and adapters for them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.adapters = folder / "adapters"
        self.adapters.mkdir()
        monkeypatch.setattr(adapters, "__path__", [str(self.adapters)])
        monkeypatch.syspath_prepend(str(folder))

    def add(self, name: str, kind: str = "framework", adapter: str = ADAPTER) -> None:
        (self.folder / f"{name}.py").write_text(FRAMEWORK)
        (self.folder / f"{name}_late.py").write_text(FRAMEWORK)
        (self.adapters / f"{name}.py").write_text(adapter.format(name=name, kind=kind))
        importlib.invalidate_caches()

    def start(self) -> None:
        assert guest.start(None, run="job")

    def seen(self) -> SimpleNamespace:
        """What the agent would see of this process, from the begin."""
        assert recorder.current is not None
        reader = SegmentReader(recorder.current.path)
        records = [(reader.name(r[9]) or "", r[3], r[8] & KIND_MASK) for r in reader.drain()]
        framework = reader.identity().framework
        num_errors = reader.live_words()[4]
        reader.close()
        return SimpleNamespace(
            gauges={n: value for n, value, kind in records if kind == GAUGE},
            stages=[n for n, _, kind in records if kind == STAGE],
            framework=framework,
            num_errors=num_errors,
        )


@pytest.fixture
def job(tmp_path, monkeypatch, dfx_dir):
    monkeypatch.setenv("DFX_DISABLE_HOOKS", "")
    monkeypatch.setattr(adapters, "_adapters", {})
    monkeypatch.setattr(guest, "hook_torch", lambda: None)
    known, registry = set(sys.modules), dict(patches.registry)
    yield Job(tmp_path, monkeypatch)
    guest.stop()
    imports.cancel_all()
    patches.registry.clear()
    patches.registry.update(registry)
    for name in set(sys.modules) - known:
        if "some_rl" in name:
            del sys.modules[name]
            vars(adapters).pop(name.rpartition(".")[2], None)


def test_parts_are_active_absent_and_failed_each_on_its_own(job) -> None:
    job.add("some_rl")
    job.start()
    assert job.seen().gauges == {}
    assert "dfx_agent.shim.adapters.some_rl" not in sys.modules
    framework = importlib.import_module("some_rl")
    gauges = job.seen().gauges
    assert gauges == {
        "adapter/some_rl/acting/1.2": 1.0,
        "adapter/some_rl/missing/1.2": 0.0,
        "adapter/some_rl/broken/1.2": -1.0,
        "adapter/some_rl/late/1.2": 0.0,
    }
    assert framework.act() == "acted"
    assert job.seen().stages == ["rollout"]
    assert job.seen().gauges == {**gauges, "delivered/some_rl/acting/1.2": 1.0}
    importlib.import_module("some_rl_late")
    assert job.seen().gauges["adapter/some_rl/late/1.2"] == 1.0


def test_after_the_end_nothing_is_patched_and_a_new_begin_patches_it(job) -> None:
    job.add("some_rl")
    job.start()
    guest.stop()
    framework = importlib.import_module("some_rl")
    assert not hasattr(framework.act, "__wrapped__")
    job.start()
    assert hasattr(framework.act, "__wrapped__")


def test_coroutine_is_a_stage_and_stays_a_coroutine(job) -> None:
    job.add("some_rl")
    job.start()
    framework = importlib.import_module("some_rl")
    assert asyncio.iscoroutinefunction(framework.act_later)
    assert asyncio.run(framework.act_later()) == "acted later"
    assert job.seen().stages == ["reward"]


def test_framework_that_is_loaded_already_is_woken_at_once(job) -> None:
    job.add("some_rl")
    original = importlib.import_module("some_rl").act
    job.start()
    framework = sys.modules["some_rl"]
    assert job.seen().gauges["adapter/some_rl/acting/1.2"] == 1.0
    assert job.seen().framework == "some_rl"
    guest.stop()
    assert framework.act is original
    guest.start(None, run="again")
    assert framework.act is not original
    assert job.seen().gauges["adapter/some_rl/acting/1.2"] == 1.0


def test_framework_imported_before_the_first_record_is_reported(job) -> None:
    job.add("some_rl")
    adapters.install()  # as bootstrap.arm does
    importlib.import_module("some_rl")
    job.start()
    seen = job.seen()
    assert seen.framework == "some_rl"
    assert seen.gauges["adapter/some_rl/acting/1.2"] == 1.0


@pytest.mark.parametrize("first", ["some_rl_library", "some_rl"])
def test_framework_wins_over_the_library_it_is_built_on(job, first) -> None:
    job.add("some_rl")
    job.add("some_rl_library", kind="library")
    job.add("some_rl_tracker", kind="tracker")
    job.start()
    importlib.import_module("some_rl_tracker")
    assert not job.seen().framework
    importlib.import_module(first)
    assert job.seen().framework == first
    for name in ("some_rl_library", "some_rl"):
        importlib.import_module(name)
    assert job.seen().framework == "some_rl"


def test_what_the_job_says_of_itself_stays(job) -> None:
    job.add("some_rl")
    assert guest.start(None, run="job", framework="mine")
    importlib.import_module("some_rl")
    assert job.seen().framework == "mine"


def test_disabled_part_stays_out(job, monkeypatch) -> None:
    monkeypatch.setenv("DFX_DISABLE_HOOKS", "some_rl.acting")
    job.add("some_rl")
    job.start()
    importlib.import_module("some_rl").act()
    seen = job.seen()
    assert seen.gauges["adapter/some_rl/acting/1.2"] == 0.0
    assert seen.stages == []


def test_broken_adapter_file_is_reported_and_the_job_continues(job) -> None:
    job.add("some_rl", adapter="raise RuntimeError('adapter bug')")
    job.start()
    assert importlib.import_module("some_rl").act() == "acted"
    seen = job.seen()
    assert seen.gauges == {"adapter/some_rl/load/": -1.0}
    assert seen.num_errors == 1


def test_trackers_are_quiet_inside_and_only_inside() -> None:
    with adapters.quiet_trackers():
        assert adapters.trackers_are_quiet()
    assert not adapters.trackers_are_quiet()


def test_dotted_trigger_is_spelt_with_two_underscores(job) -> None:
    job.add("some_rl")
    job.adapters.joinpath("some_rl.py").rename(job.adapters / "some_rl__inner.py")
    job.folder.joinpath("some_rl.py").unlink()
    package = job.folder / "some_rl"
    package.mkdir()
    package.joinpath("__init__.py").write_text("__version__ = '3'\n")
    package.joinpath("inner.py").write_text(FRAMEWORK)
    job.start()
    importlib.import_module("some_rl")
    assert job.seen().gauges == {}
    importlib.import_module("some_rl.inner")
    assert "adapter/some_rl.inner/late/3" in job.seen().gauges


IN_MEMORY = """
import json, sys
from dfx_agent.attach.arrival import _GuestModules
guest = _GuestModules(json.loads(sys.stdin.read()))
print(json.dumps(guest.load("dfx_agent.shim.adapters")._stems()))
"""


def test_guest_without_files_lists_the_same_adapters() -> None:
    parcel = {"guest": _packed_guest(is_compiled=False), "is_compiled": False}
    answer = subprocess.run(
        [sys.executable, "-c", IN_MEMORY],
        input=json.dumps(parcel),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    listed = json.loads(answer.stdout)
    folder = ROOT / "dfx_agent" / "shim" / "adapters"
    assert listed == sorted(p.stem for p in folder.glob("[!_]*.py"))
    assert "trl" in listed
    assert listed == adapters._stems()


def test_zipped_guest_lists_the_same_adapters(tmp_path) -> None:
    path = tmp_path / "guest.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, source in guest_files().items():
            archive.writestr(name, source)
    probe = f"""
import sys
sys.path.insert(0, {str(path)!r})
from dfx_agent.shim import adapters
print(*adapters._stems())
"""
    answer = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(path)!r}); {probe}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == adapters._stems()
