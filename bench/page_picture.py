"""The picture of the page that the README shows: a real demo of today whose rank 2 is slow.

    python -m bench.page_picture --out docs/page.png

It needs playwright and Chromium. The picture is taken as soon as the page names the rank; without
that within 20 minutes there is none. A busy machine needs more steps.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright

from bench.served_agent import running

CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT = 1400, 1250
FAULT, SLOW_RANK = "straggler:2:1.5", "2"
WAIT_SECONDS = 1200.0
# what is drawn again with each snapshot has settled by then
SETTLED_MS = 1500


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.page_picture", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("docs/page.png"), metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dfx-picture-") as folder:
        command = [sys.executable, "-m", "dfx_agent", "demo", "--no-browser", "--fault", FAULT]
        own = {**os.environ, "DFX_DIR": folder, "DFX_HISTORY_DIRECTORY": "off"}
        with running(
            [*command, "--steps", "4000", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=own,
        ) as demo:  # fmt: skip
            assert demo.stdout is not None
            url = next(found[1] for line in demo.stdout if (found := _page(line)))
            threading.Thread(target=demo.stdout.read, daemon=True).start()  # else it blocks
            _await_straggler(url)
            _draw(url, options.out)
    return 0


def _page(line: str) -> re.Match[str] | None:
    return re.search(r"page (http://[0-9.]+:\d+)/", line)


def _await_straggler(url: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        runs = httpx.get(f"{url}/api/v1/snapshot", timeout=30).json()["runs"]
        for incident in (row for run in runs for row in run["incidents"]):
            if (incident["kind"], incident["ranks"]) == ("straggler", [SLOW_RANK]):
                return
        time.sleep(0.5)
    raise TimeoutError(f"rank {SLOW_RANK} is not named after {WAIT_SECONDS:.0f} s")


def _draw(url: str, out: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        size = {"width": WIDTH, "height": HEIGHT}
        page = browser.new_page(viewport=size, color_scheme="dark")  # type: ignore[arg-type]
        page.goto(url)
        page.wait_for_selector("#rank-rows tr")
        page.wait_for_timeout(SETTLED_MS)
        page.screenshot(path=out)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
