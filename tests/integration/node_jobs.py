"""A torchrun job of two ranks on each of several hosts, started as docs/how-to/many_nodes.md says.

Who watches asks the hub over the network, from here.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from live_processes import DFX_AGENT, HERE, Started, until
from namespaces import Host

JOB = str(HERE / "jobs" / "nodes.py")
RUN, TOKEN = "nightly", "abcdef"
PORT, HUB_PORT = 9931, 9932

Row = dict[str, Any]


class NodesJob:
    """``hub``: the host whose hub is asked. ``launchers``: what runs on each host, by name."""

    def __init__(self, folder: Path, found: Sequence[Host], hub: Host) -> None:
        self.folder, self.hosts, self.hub = folder, {host.name: host for host in found}, hub
        self.orders = folder / "orders"
        self.token_file = folder / "token"
        self.token_file.write_text(f"{TOKEN}\n")
        self.launchers: dict[str, Started] = {}

    def order(self, text: str) -> None:
        """What goes wrong from the next step on; "" for nothing any more."""
        beside = self.orders.with_suffix(".new")
        beside.write_text(text)
        beside.rename(self.orders)

    def first_step(self, what: str) -> int:
        """The first step in which this was ordered, as the ranks say it."""
        text = "".join(process.output for process in self.launchers.values())
        begun = [line.split() for line in text.splitlines() if line.startswith(f"{what} from ")]
        return int(begun[-1][-1]) if begun else 0

    def asked(self, path: str = "/api/v1/snapshot", host: Host | None = None) -> Any:
        """Of the hub, or of the agent of a host; None while it does not answer."""
        where, port = (self.hub, HUB_PORT) if host is None else (host, PORT)
        request = urllib.request.Request(
            f"http://{where.address}:{port}{path}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with contextlib.suppress(OSError), opener.open(request, timeout=10) as response:
            return json.load(response)
        return None

    def run(self) -> Row:
        """The job as the hub knows it; {} before there is one."""
        snapshot = self.asked() or {"runs": []}
        return next((row for row in snapshot["runs"] if row["run"] == RUN), {})

    def ranks(self) -> dict[str, str]:
        """Rank -> its node."""
        return {row["rank"]: row["node"] for row in self.run().get("ranks", ())}

    def step(self) -> int:
        """The newest that all ranks have closed."""
        return max((row["step"] for row in self.run().get("steps", ())), default=0)

    def verdicts(self) -> dict[str, Row]:
        return {row["kind"]: row for row in self.run().get("verdicts", ())}

    def found(self, *kinds: str) -> dict[str, Row]:
        """Verdicts that found something: all of them, or of these kinds."""
        known = self.verdicts().items()
        return {
            kind: row
            for kind, row in known
            if row["state"] == "found" and (not kinds or kind in kinds)
        }

    def calm(self) -> bool:
        """Whether everything is clear, and of all ranks."""
        known = self.verdicts()
        return {"hang", "crash"} <= known.keys() and {"clear"} == {
            known[kind]["state"] for kind in ("hang", "crash")
        }

    def pid(self, rank: int) -> int:
        found = (host.ranks().get(rank) for host in self.hosts.values())
        return next(process.pid for process in found if process is not None)

    def until(self, look: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
        """As ``live_processes.until``, with what everybody says where it does not come."""
        try:
            return until(look, what, seconds)
        except AssertionError as error:
            known = {kind: row["summary"] for kind, row in self.verdicts().items()}
            raise AssertionError(f"{error}; {self.ranks()} {known} {self.said()}") from None

    def said(self) -> dict[str, str]:
        """The end of what each launcher wrote on stderr."""
        return {name: process.errors[-2000:] for name, process in self.launchers.items()}


def torchrun(number: int, num_nodes: int, master: str, *words: str) -> list[str]:
    """As on each node of a job."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(num_nodes),
        "--node-rank", str(number), "--master-addr", master, "--nproc-per-node", "2", JOB, *words,
    ]  # fmt: skip


def settings(job: NodesJob, hub: str, **more: str) -> dict[str, str]:
    """The first of the two lines on each node."""
    return {
        "DFX_HUB": hub, "DFX_TOKEN_FILE": str(job.token_file), "DFX_LISTEN": f"0.0.0.0:{PORT}",
        "DFX_LINGER_SECONDS": "0", "NO_PROXY": "*", **more,
    }  # fmt: skip


@contextmanager
def started_job(
    job: NodesJob, hub: str, on: Sequence[str], seconds: float, more: Mapping[str, str]
) -> Iterator[None]:
    """The second line, on each of these hosts."""
    job.order("")
    with ExitStack() as stack:
        for number, name in enumerate(on):
            words = torchrun(number, len(on), on[0], str(job.orders), str(seconds))
            command = [*DFX_AGENT, "run", "--run", RUN, "--", *words]
            begun = job.hosts[name].started(command, settings(job, hub, **more))
            job.launchers[name] = stack.enter_context(begun)
        yield


def inner(process: Started) -> psutil.Process:
    """What was started in the host: below nsenter."""
    return until(process.descendants, "a process in the host")[0]


def stop(job: NodesJob, rank: int) -> Callable[[], None]:
    """SIGSTOP; what is returned lets it go on."""
    process = psutil.Process(job.pid(rank))
    process.send_signal(signal.SIGSTOP)
    return lambda: process.send_signal(signal.SIGCONT)


def steady(job: NodesJob, num_steps: int = 8) -> None:
    """Until so many more steps are closed, and nothing is found."""
    begin = job.step()

    def look() -> bool:
        return job.step() >= begin + num_steps and job.calm() and not job.found()

    job.until(look, f"{num_steps} steps, and nothing found", 120)
