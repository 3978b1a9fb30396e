"""The agent has no use for httpx's command line, and does not keep it in memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKS = {
    "engines": "from dfx_agent.node.engines.scrape import client; client()",
    "client": "from dfx_agent.commands.ps.agent_client import AskedAgent; AskedAgent('http://localhost:1')._client()",
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_who_asks_over_http_does_not_load_rich(ask):
    probe = f"""
{ask}
import sys
import httpx
names = {{name.partition(".")[0] for name in sys.modules}}
assert "httpx" in names and not {{"rich", "pygments", "click"}} & names, sorted(names)
assert "httpx._main" not in sys.modules and httpx.main.__module__ == "httpx"
import httpx._main  # whoever wants it has it
"""
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_httpx_that_is_there_already_stays_what_it_is():
    probe = """
import sys
import httpx
known = dict(sys.modules)
from dfx_agent.base.lean_httpx import httpx as lean
assert lean is httpx and sys.modules["httpx._main"] is known["httpx._main"]
"""
    subprocess.run([sys.executable, "-c", probe], check=True)
