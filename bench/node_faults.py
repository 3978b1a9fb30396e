"""Faults of a job on two hosts: what its hub says of each, how soon, and what is paged.

    python -m bench.node_faults                     # all, about ten minutes
    python -m bench.node_faults slow stop killed    # some

Hosts are namespaces of this machine (``tests/integration/namespaces.py``): it takes root, iproute2
and Debian's prometheus-alertmanager. A real torchrun job of 2 x 2 ranks with gloo runs on two of
them, started by the two lines of docs/how-to/many_nodes.md, with the hub beside node rank 0 or on a
third host. The hub is asked over the network four times a second. An Alertmanager tells each alert
once, to a webhook. ``wrong``: verdicts that found something else, and pages of something else.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "integration"))

from alert_receivers import Hook, alertmanager, hooked
from live_processes import DFX_AGENT, ROOT, Started, until, unused_port
from namespaces import Host, hosts, missing
from node_jobs import JOB, RUN, NodesJob, inner, settings, started_job, steady, stop

ASK_SECONDS = 0.25
STEP_SECONDS = 0.9  # of which the forward is slept
AHEAD_SECONDS, WALL_SECONDS = 100_000, 300
OF_AUTO = ("slow", "stopped", "killed")
OF_OWN = ("cut", "gone", "hub", "agent", "link", "mismatch")
FAULTS = (*OF_AUTO, "apart", *OF_OWN, "joined")


@dataclass
class Seen:
    """Of one fault; seconds since it began, steps since the first slow one."""

    fault: str
    verdict: str = ""
    verdict_seconds: float | None = None
    num_steps: int | None = None
    paged_seconds: float | None = None
    over_seconds: float | None = None
    num_pages: int = 0
    wrong: list[str] = field(default_factory=list)
    load: float = 0.0


class Scene:
    """A job that runs, and who is told. ``watch`` notes everything that is found."""

    def __init__(self, job: NodesJob, hook: Hook, alertmanager_url: str) -> None:
        self.job, self.hook, self.alertmanager_url = job, hook, alertmanager_url
        self._num_told = 0

    def watch(
        self,
        seen: Seen,
        expected: tuple[str, str, str],
        until_when: Callable[[], Any],
        seconds: float,
        begin: float,
    ) -> Any:
        """Ask until it is true; ``expected``: kind, rank and alert that are right."""
        kind, rank, alert = expected
        end = begin + seconds
        while True:
            now = time.monotonic()
            for name, row in self.job.found().items():
                is_right = name == kind and row["ranks"] == [rank]
                if is_right and seen.verdict_seconds is None:
                    seen.verdict, seen.verdict_seconds = row["summary"], round(now - begin, 1)
                    first = self.job.first_step("slow")
                    seen.num_steps = row["step"] - first + 1 if kind == "straggler" else None
                elif not is_right and row["summary"] not in seen.wrong:
                    seen.wrong.append(row["summary"])
            self._note_pages(seen, alert, now - begin)
            if (found := until_when()) or now > end:
                return found
            time.sleep(ASK_SECONDS)

    def _note_pages(self, seen: Seen, alert: str, seconds: float) -> None:
        reported = self.hook.told
        for status, name, run in reported[self._num_told :]:
            if status != "firing":
                continue
            if name != alert or run != RUN:
                seen.wrong.append(f"page {name} {run}")
                continue
            seen.num_pages += 1
            if seen.paged_seconds is None:
                seen.paged_seconds = round(seconds, 1)
        self._num_told = len(reported)


def both(seen: Seen) -> bool:
    return seen.verdict_seconds is not None and seen.paged_seconds is not None


def slow(scene: Scene, ratio: str = "1.25") -> Seen:
    """Rank 3 on node-b takes longer, until it does not any more."""
    seen = Seen("slow")
    begin = time.monotonic()
    scene.job.order(f"slow 3 {ratio}")
    expected = "straggler", "3", "DfxStraggler"
    scene.watch(seen, expected, lambda: both(seen), 90, begin)
    scene.job.order("")
    begin = time.monotonic()
    over = ("resolved", "DfxStraggler", RUN)
    scene.watch(seen, expected, lambda: over in scene.hook.told, 90, begin)
    seen.over_seconds = round(time.monotonic() - begin, 1)
    return seen


def stopped(scene: Scene) -> Seen:
    """SIGSTOP of rank 3, then SIGCONT."""
    seen = Seen("stopped")
    begin = time.monotonic()
    go_on = stop(scene.job, 3)
    expected = "hang", "3", "DfxStepStalled"
    scene.watch(seen, expected, lambda: both(seen), 90, begin)
    go_on()
    begin = time.monotonic()
    over = ("resolved", "DfxStepStalled", RUN)
    scene.watch(seen, expected, lambda: over in scene.hook.told and scene.job.calm(), 90, begin)
    seen.over_seconds = round(time.monotonic() - begin, 1)
    return seen


def killed(scene: Scene) -> Seen:
    """SIGKILL of rank 3; torchrun ends the job."""
    seen = Seen("killed")
    begin = time.monotonic()
    os.kill(scene.job.pid(3), signal.SIGKILL)
    ends = [process.popen for process in scene.job.launchers.values()]

    def is_over() -> bool:
        return all(end.poll() is not None for end in ends) and seen.paged_seconds is not None

    scene.watch(seen, ("crash", "3", "DfxRankDied"), is_over, 90, begin)
    seen.over_seconds = round(time.monotonic() - begin, 1)
    return seen


def mismatch(scene: Scene) -> Seen:
    """Rank 3 broadcasts where the others reduce."""
    seen = Seen("mismatch")
    begin = time.monotonic()
    scene.job.order("mismatch 3")
    scene.watch(seen, ("hang", "3", "DfxStepStalled"), lambda: both(seen), 120, begin)
    return seen


def said_of(scene: Scene, seen: Seen, text: str, begin: float, seconds: float = 90) -> None:
    """Until the hub says this of a node."""

    def said() -> bool:
        row = scene.job.verdicts().get("hang", {"summary": ""})
        if text in row["summary"]:
            seen.verdict, seen.verdict_seconds = row["summary"], round(time.monotonic() - begin, 1)
        return text in row["summary"]

    scene.watch(seen, ("", "", ""), said, seconds, begin)


def calm_again(scene: Scene, seen: Seen, seconds: float = 60) -> None:
    begin = time.monotonic()
    scene.watch(seen, ("", "", ""), scene.job.calm, seconds, begin)
    seen.over_seconds = round(time.monotonic() - begin, 1)


def agent_killed(scene: Scene, stack: ExitStack) -> Seen:
    """Of node-b; the job goes on, and a new agent comes."""
    seen, job = Seen("agent killed"), scene.job
    begin = time.monotonic()
    inner(job.launchers["node-b"]).kill()
    said_of(scene, seen, "the agent of node-b has told nothing", begin)
    env = settings(job, job_hub(job), DFX_ALERTMANAGER=scene.alertmanager_url)
    stack.enter_context(job.hosts["node-b"].started([*DFX_AGENT, "serve"], env))
    calm_again(scene, seen)
    return seen


def cut_from_hub(scene: Scene) -> Seen:
    """Node-b and the hub do not reach each other, the job goes on."""
    seen, job = Seen("cut off from the hub"), scene.job
    begin = time.monotonic()
    job.hosts["node-b"].set_route(job.hub.address, is_open=False)
    said_of(scene, seen, "node-b is cut off from this hub", begin)
    job.hosts["node-b"].set_route(job.hub.address, is_open=True)
    calm_again(scene, seen)
    return seen


def link_down(scene: Scene) -> Seen:
    """The cable of node-b; then it is plugged in again."""
    seen, job = Seen("link down"), scene.job
    begin = time.monotonic()
    job.hosts["node-b"].set_link(is_up=False)
    said_of(scene, seen, "node-b is gone, or cut off from everybody", begin)
    job.hosts["node-b"].set_link(is_up=True)
    calm_again(scene, seen, 120)
    return seen


def hub_killed(scene: Scene, stack: ExitStack, hub: list[Started]) -> Seen:
    """While rank 3 is stopped: how soon the next one is right."""
    seen, job = Seen("hub killed"), scene.job
    expected = "hang", "3", "DfxStepStalled"
    go_on = stop(job, 3)
    begin = time.monotonic()
    scene.watch(seen, expected, lambda: both(seen), 90, begin)
    inner(hub[-1]).kill()
    hub[-1].wait()
    seen.verdict_seconds = None
    begin = time.monotonic()
    hub.append(stack.enter_context(started_hub(job, scene.alertmanager_url)))
    right = scene.watch(seen, expected, lambda: seen.verdict_seconds is not None, 60, begin)
    assert right, job.verdicts()
    go_on()
    over = ("resolved", "DfxStepStalled", RUN)
    begin = time.monotonic()
    scene.watch(seen, expected, lambda: over in scene.hook.told and job.calm(), 120, begin)
    seen.over_seconds = round(time.monotonic() - begin, 1)
    return seen


def hub_gone(scene: Scene, stack: ExitStack, hub: list[Started]) -> Seen:
    """For 150 s, while rank 3 is stopped: its nodes deliver, and it stays one page."""
    seen, job = Seen("hub gone for 150 s"), scene.job
    expected = "hang", "3", "DfxStepStalled"
    go_on = stop(job, 3)
    begin = time.monotonic()
    scene.watch(seen, expected, lambda: both(seen), 90, begin)
    inner(hub[-1]).kill()
    hub[-1].wait()
    scene.watch(seen, expected, lambda: False, 150, time.monotonic())
    hub.append(stack.enter_context(started_hub(job, scene.alertmanager_url)))
    scene.watch(seen, expected, lambda: bool(job.found("hang")), 60, time.monotonic())
    go_on()
    begin = time.monotonic()
    over = ("resolved", "DfxStepStalled", RUN)
    scene.watch(seen, expected, lambda: over in scene.hook.told and job.calm(), 180, begin)
    seen.over_seconds = round(time.monotonic() - begin, 1)
    return seen


def job_hub(job: NodesJob) -> str:
    return f"http://{job.hub.name}:9932"


@contextmanager
def started_hub(job: NodesJob, manager: str) -> Iterator[Started]:
    words = [*DFX_AGENT, "hub", "--token-file", str(job.token_file), "--alertmanager", manager]
    with job.hub.started(words, {"NO_PROXY": "*"}) as process:
        until(lambda: process.popen.poll() is not None or "hub http" in process.output, "the hub")
        yield process


@contextmanager
def scene(kind: str, *, apart: bool = False) -> Iterator[tuple[Scene, ExitStack, list[Started]]]:
    """``kind``: auto, or own for a hub on a third host. ``apart``: clocks of node-b are."""
    names = ["node-a", "node-b", *(["hub"] if kind == "own" else [])]
    ahead = {"node-b": AHEAD_SECONDS} if apart else {}
    with tempfile.TemporaryDirectory(prefix="dfx-bench-") as made, ExitStack() as stack:
        folder = Path(made)
        found = stack.enter_context(hosts(folder, *names, ahead=ahead))
        by_name: dict[str, Host] = {host.name: host for host in found}
        if apart:
            by_name["node-b"].set_wall_clock(WALL_SECONDS)
        hook, port = stack.enter_context(hooked()), unused_port()
        binary = "prometheus-alertmanager"
        served = alertmanager(binary, folder, port, hook, host=found[0].here, group_by="...")
        url = stack.enter_context(served).url
        job = NodesJob(folder, found[:2], by_name["hub" if kind == "own" else "node-a"])
        hub = [stack.enter_context(started_hub(job, url))] if kind == "own" else []
        reported = {"DFX_ALERTMANAGER": url}
        joined = job_hub(job) if kind == "own" else "auto"
        on = ["node-a", "node-b"]
        stack.enter_context(started_job(job, joined, on, STEP_SECONDS, reported))
        job.until(lambda: len(job.ranks()) == 4, "four ranks", 120)
        yield Scene(job, hook, url), stack, hub


def never_joined() -> Seen:
    """Four of six ranks wait for those of node-c, whose agent is there."""
    seen = Seen("never joined")
    with tempfile.TemporaryDirectory(prefix="dfx-bench-") as made, ExitStack() as stack:
        folder = Path(made)
        found = stack.enter_context(hosts(folder, "node-a", "node-b", "node-c"))
        job = NodesJob(folder, found, found[0])
        hook = stack.enter_context(hooked())
        ranks = 'for N in 0 1; do RANK=$(($1 + N)) LOCAL_RANK=$N "$2" "$3" "$4" & done; wait'
        begin = time.monotonic()
        for number, host in enumerate(found[:2]):
            env = {"MASTER_ADDR": "node-a", "MASTER_PORT": "29500", "NODE_RANK": str(number)}
            env |= {"WORLD_SIZE": "6", "ROLE": "trainer", "PYTHONPATH": str(ROOT)}
            env |= settings(job, "auto", DFX_WEBHOOK=hook.url)
            words = [ranks, "sh", str(2 * number), sys.executable, JOB, str(job.orders)]
            command = [*DFX_AGENT, "run", "--run", RUN, "--", "sh", "-c", *words]
            job.launchers[host.name] = stack.enter_context(host.started(command, env))
        env = settings(job, job_hub(job))
        stack.enter_context(found[2].started([*DFX_AGENT, "serve"], env))
        job.until(lambda: len(job.ranks()) == 4, "four ranks", 120)
        begin = time.monotonic()
        said_of(Scene(job, hook, ""), seen, "4 of 6 ranks are here; nothing from node-c", begin)
        said_of(Scene(job, hook, ""), seen, "the job waits in rendezvous for", begin, 120)
    return seen


def measured(wanted: set[str]) -> Iterator[Seen]:
    auto: dict[str, Callable[[Scene], Seen]] = {"slow": slow, "stopped": stopped, "killed": killed}
    for apart in (False, True):
        if wanted & (auto.keys() if not apart else {"apart"}):
            with scene("auto", apart=apart) as (known, _, _):
                for name, fault in auto.items():
                    if apart or name in wanted:
                        steady(known.job)
                        seen = fault(known)
                        seen.fault += ", clocks apart" if apart else ""
                        yield seen
    if wanted & set(OF_OWN):
        with scene("own", apart=True) as (known, stack, hub):
            faults: dict[str, Callable[[], Seen]] = {
                "cut": lambda: cut_from_hub(known),
                "gone": lambda: hub_gone(known, stack, hub),
                "hub": lambda: hub_killed(known, stack, hub),
                "agent": lambda: agent_killed(known, stack),
                "link": lambda: link_down(known),
                "mismatch": lambda: mismatch(known),
            }
            for name, own_fault in faults.items():
                if name in wanted:
                    steady(known.job)
                    yield own_fault()
    if "joined" in wanted:
        yield never_joined()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", nargs="*", choices=[*FAULTS, []], help="all where none is named")
    parser.add_argument("--out", type=Path, help="rows as JSON")
    options = parser.parse_args()
    if missing():
        print(f"node_faults: {missing()}", file=sys.stderr)
        return 1
    rows = []
    for seen in measured(set(options.fault or FAULTS)):
        seen.load = round(os.getloadavg()[0], 1)
        rows.append(asdict(seen))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
