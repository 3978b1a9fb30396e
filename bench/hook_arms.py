"""What each hook of the guest costs the demo's step: all hooks but one, in turn, interleaved.

python -m bench.hook_arms --seconds 240 (two processes; no budget; keep the machine idle). The
processor time of a step without a hook, subtracted from that with all of them, is what it costs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from bench.estimates import bootstrap_interval, median
from bench.overhead import NUM_RANKS
from bench.rounds import Rounds, torchrun

HOOKS = ("flops", "forward", "backward", "optimizer", "grad_norm", "ddp", "collectives")
ARMS = ("on", "off", "again", *(f"no {hook}" for hook in HOOKS))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=240.0, help="default %(default)s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        out = Path(folder, "rounds.json")
        command = ["bench.toggled_training", "--seconds", str(options.seconds)]
        command += ["--out", str(out), "--arms", ",".join(ARMS)]
        torchrun(NUM_RANKS, command, folder, DFX_MAX_OVERHEAD="0")
        for line in lines(json.loads(out.read_text())):
            print(line)


def lines(ranks: list[Rounds]) -> list[str]:
    """Median over rounds of the processor time that an arm saves, in ms a step and rank."""
    rounds = [item for rank in ranks for item in rank]
    found = []
    for arm in ARMS[1:]:
        saved = [(r["on"]["cpu_seconds"] - r[arm]["cpu_seconds"]) * 1e3 for r in rounds]
        low, high = bootstrap_interval(median, saved)
        what = "all hooks" if arm in ("off", "again") else arm.removeprefix("no ")
        found.append(f"{what:12} {median(saved):6.2f} ms [{low:.2f}, {high:.2f}], n {len(saved)}")
    return found


if __name__ == "__main__":
    main()
