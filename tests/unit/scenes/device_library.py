"""Libraries of device makers, built by the C compiler and scripted; and who reads through them.

A library cannot be loaded anew, so each reader is a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dfx_agent.snapshot import DeviceRow
from dfx_agent.snapshot.document import Document

SOURCES = Path(__file__).parents[1] / "node" / "devices" / "stand_ins"
FILES = {
    "nvidia": ("nvml.c", "libnvidia-ml.so.1"),
    "ascend": ("dcmi.c", "libdcmi.so"),
    "amd": ("amdsmi.c", "libamd_smi.so"),
}
READER = """
import json, sys
from importlib import import_module
from dfx_agent.snapshot import DeviceRow
from dfx_agent.snapshot.document import Document

ROWS = Document[tuple[DeviceRow, ...]](tuple[DeviceRow, ...])
backend = None
for line in sys.stdin:
    verb, *words = line.split()
    try:
        if verb == "probe":
            module = import_module(f"dfx_agent.node.devices.backends.{words[0]}")
            module.DRIVER_FILES = tuple(words[1:])
            backend = module.Backend()
            answer = {"is_here": backend.probe()}
        elif verb == "read":
            answer = {"rows": json.loads(ROWS.dumped(backend.read()))}
        else:
            answer = {"closed": backend.close()}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
"""
_ROWS: Document[tuple[DeviceRow, ...]] = Document(tuple[DeviceRow, ...])


def build(folder: Path, vendor: str, missing: Collection[str] = ()) -> Path:
    """The folder with the library of that maker, without the functions that are ``missing``."""
    source, name = FILES[vendor]
    folder.mkdir(parents=True, exist_ok=True)
    others = _other_functions(folder) if vendor == "amd" else ()
    hidden = [f"-D{symbol}=missing_{symbol}" for symbol in missing]
    shared = ["-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{name}"]
    command = ["cc", *shared, *hidden, "-o", folder / name, SOURCES / source, *others]
    subprocess.run(command, check=True)
    return folder


def _other_functions(folder: Path) -> list[Path]:
    """What the package amdsmi, which loads its library, looks up beside what is scripted."""
    spec = find_spec("amdsmi")
    assert spec is not None
    assert spec.origin is not None
    wrapper = Path(spec.origin).with_name("amdsmi_wrapper.py").read_text()
    names = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper))
    known = set(re.findall(r"\b(amdsmi_\w+)\(", (SOURCES / FILES["amd"][0]).read_text()))
    lines = [f"int {name}(void) {{ return 2; }}" for name in sorted(names - known)]
    file = folder / "others.c"
    file.write_text("\n".join(lines))
    return [file]


class Script:
    """What the library does from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.say()

    def say(self, **values: float) -> None:
        """Instead of what was said before; ``__`` in a key is a dot."""
        text = "".join(f"{key.replace('__', '.')} {value}\n" for key, value in values.items())
        draft = self.path.with_suffix(".new")
        draft.write_text(text)
        draft.replace(self.path)  # it is read at any time


def environment(library: Path | None, script: Path) -> dict[str, str]:
    """For a process that reads through this library."""
    known = {key: value for key, value in os.environ.items() if key != "ROCM_PATH"}
    found = {"LD_LIBRARY_PATH": str(library)} if library else {}
    return {**known, **found, "DFX_TEST_SCRIPT": str(script)}


class Reading:
    """One backend in a process of its own; close it."""

    def __init__(
        self, vendor: str, environment: Mapping[str, str], driver: Collection[str]
    ) -> None:
        self._vendor, self._driver = vendor, driver
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER], env=dict(environment), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def probe(self) -> bool:
        """AssertionError with what was raised."""
        return bool(self._ask(" ".join(["probe", self._vendor, *self._driver]))["is_here"])

    def read(self) -> tuple[DeviceRow, ...]:
        return _ROWS.loaded(self._ask("read")["rows"])

    def one(self) -> DeviceRow:
        (row,) = self.read()
        return row

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer


WATCHED = """
import json, sys, time
from dfx_agent.agent import device_watch
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.node.devices import registry
from dfx_agent.node.devices.backends import nvidia

folder, driver = sys.argv[1:]
nvidia.DRIVER_FILES = (driver,)
registry.LATE_SECONDS = 0.1
registry.READ_EVERY_SECONDS = device_watch.READ_EVERY_SECONDS = 0.02
agent = Agent(Config(folder, poll_seconds=0.02))
agent.start()
for line in sys.stdin:
    if line.strip() == "stop":

        agent.stop()
        print(json.dumps({"stopped": True}), flush=True)
        break
    snapshot = agent.snapshot()
    row = snapshot.agent
    print(json.dumps({
        "devices": [device.device for device in row.devices],
        "faults": {fault.what: fault.message for fault in row.faults},
        "polls": row.num_polls,
        "ranks": {
            rank.rank: {
                "devices": rank.device_names,
                "bytes": rank.device_bytes,
                "busy": {stage.stage: stage.sm_active_ratio for stage in rank.device_stages},
            }
            for run in snapshot.runs for rank in run.ranks
        },
    }), flush=True)
"""


class WatchingAgent:
    """An agent in a process of its own whose NVML does as a script says."""

    def __init__(self, folder: Path, driver: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WATCHED, str(folder), str(driver)], env=dict(environment),
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def seen(self) -> dict[str, Any]:
        """Names of devices, faults by what fails, and how often it has read."""
        return self._ask("look")

    def stop(self) -> bool:
        return bool(self._ask("stop")["stopped"])

    def close(self) -> int:
        """How its process ended."""
        self._process.communicate()
        return self._process.returncode

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer
