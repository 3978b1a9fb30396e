"""The other side of ``observed_job``: arms the guest before the job, prints its records after."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from dataclasses import asdict
from types import ModuleType
from typing import Any, ClassVar

from dfx_agent.shim import bootstrap, recorder
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import (
    COUNT,
    GAUGE,
    KIND_MASK,
    LEDGER,
    LEDGER_FIELDS,
    QUEUE,
    SCALAR,
    STAGE,
    STEP,
    TOKENS,
    WAIT,
)

_KINDS = {
    STAGE: "stage",
    WAIT: "wait",
    SCALAR: "scalar",
    STEP: "step",
    GAUGE: "gauge",
    TOKENS: "tokens",
    QUEUE: "queue",
    COUNT: "count",
    LEDGER: "ledger",
}


class _AnyName(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Anything(metaclass=_AnyName):
    """Stands for a class, function or value of a package that is not there."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **_kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else Anything()  # a decorator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __or__(self, _other: object) -> Any:
        return Any

    __ror__ = __or__


class _Stub(ModuleType):
    __path__: ClassVar[list[str]] = []
    __version__ = "0.0"  # transformers compares it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (Anything,), {})


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in self._packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def begin() -> None:
    """As ``dfx-agent run`` does it: armed before the first import of the job."""
    stubs = set(filter(None, os.environ["DFX_STUBS"].split(",")))
    sys.meta_path.insert(0, _Stubs(stubs))
    bootstrap.arm()


def end() -> None:
    """Print what was recorded as one line."""
    writer = recorder.active()
    assert writer is not None
    reader = SegmentReader(writer.path)
    rows: list[tuple[str, str, float, int, float]] = []
    while batch := reader.poll():
        for row in batch:
            kind = _KINDS.get(row[8] & KIND_MASK)
            if kind is not None:
                field = f"{LEDGER_FIELDS[row[7]]}/" if kind == "ledger" else ""
                name, seconds = field + (reader.name(row[9]) or ""), (row[2] - row[1]) / 1e9
                rows.append((kind, name, row[3], row[4], seconds))
    result = {
        "records": rows,
        "identity": asdict(writer.identity),
        "num_errors": reader.live_words()[4],
    }
    print("OBSERVED " + json.dumps(result), flush=True)
