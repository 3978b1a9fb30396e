"""What runs in the child process: the user's function in a loop, watched every millisecond.

Stages are recorded by the guest, as in a job; lags are left beside its segment. The user's own
output goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

import dfx_agent.shim as dfx
from dfx_agent.attribution.boundary import Boundary, WrongUseError, own_code
from dfx_agent.attribution.pulse import Lookout, Pulse, Stretch, Traffic
from dfx_agent.shim import recorder

_IDLE_SECONDS, _SETTLE_SECONDS = 1.0, 0.2
RESULT = "attribution.json"


@dataclass(frozen=True)
class Wanted:
    """What the child is asked for; ``inputs`` is a JSON file or "", ``folder`` the result's."""

    script: str
    function: str
    inputs: str
    num_tasks: int
    folder: str


@dataclass
class Outcome:
    """Monotonic ns but for seconds. ``error`` is "" where all went well."""

    segment: str = ""
    begin_ns: int = 0
    end_ns: int = 0
    idle_lag_seconds: float = 0.0
    num_beats: int = 0
    late_beats: list[Stretch] = field(default_factory=list)
    held: list[tuple[int, int, str]] = field(default_factory=list)
    num_wakes: int = 0
    late_wakes: list[Stretch] = field(default_factory=list)
    error: str = ""
    is_wrong_use: bool = False


def main() -> None:
    """In the child: ``argv[1]`` is a Wanted as JSON."""
    wanted = Wanted(**json.loads(sys.argv[1]))
    outcome = Outcome()
    try:
        _run(wanted, outcome)
    except WrongUseError as error:
        outcome.error, outcome.is_wrong_use = str(error), True
    except Exception as error:  # noqa: BLE001 (the user's)
        traceback.print_exception(type(error), error, _from_the_script(error.__traceback__))
        outcome.error = f"{type(error).__name__}: {error}"
    Path(wanted.folder, RESULT).write_text(json.dumps(asdict(outcome)))
    dfx.shutdown()


def _run(wanted: Wanted, outcome: Outcome) -> None:
    given = json.loads(Path(wanted.inputs).read_text()) if wanted.inputs else None
    dfx.init(directory=wanted.folder, run="attribute", role="attribute", rank=0)
    writer = recorder.current
    if writer is None:
        raise RuntimeError(f"nothing can be recorded in {wanted.folder}")
    outcome.segment = writer.path
    boundary = Boundary(wanted.script, wanted.function, given)
    asyncio.run(_watched(boundary, wanted.num_tasks, outcome))


def _from_the_script(trace: TracebackType | None) -> TracebackType | None:
    """Without our own frames and those of asyncio above it."""
    above = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent))
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename.startswith(above):
        trace = trace.tb_next
    return trace


async def _watched(boundary: Boundary, num_tasks: int, outcome: Outcome) -> None:
    pulse, traffic = Pulse(), Traffic(num_tasks)
    lookout = Lookout(pulse, {_watched.__code__, *own_code()})
    pulse.start()
    outcome.idle_lag_seconds = await pulse.idle_lag_seconds(_IDLE_SECONDS)
    lookout.start()
    traffic.start()
    await asyncio.sleep(_SETTLE_SECONDS)
    outcome.begin_ns = time.monotonic_ns()
    try:
        await boundary.run()
    finally:
        await asyncio.sleep(0.01)  # what is late comes
        outcome.end_ns = time.monotonic_ns()
        for each in (lookout, pulse, traffic):
            each.stop()
        outcome.num_beats, outcome.late_beats = pulse.num_beats, pulse.late
        outcome.num_wakes, outcome.late_wakes = traffic.num_wakes, traffic.late
        outcome.held = lookout.held
