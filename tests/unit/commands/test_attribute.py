"""`dfx-agent attribute`: the phases of a real step boundary, run by themselves in a child."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
CLI = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r});"
    "import dfx_agent.commands as c; sys.exit(c.main())"
)
SCRIPT = """
import asyncio, json, os, time
from concurrent.futures import ThreadPoolExecutor
import dfx_agent.shim as dfx

def burn(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

def serialise(rows):
    json.dumps(rows)

def concatenate(seconds):
    end, text = time.perf_counter() + seconds, ""
    while time.perf_counter() < end:
        text = "a line of the report" * 100 + text

def count():
    return sum(number * number for number in range(50_000))

async def fan_out():
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(256) as pool:
        await asyncio.gather(*[loop.run_in_executor(pool, count) for _ in range(256)])

def boundary(num_rows, seconds):
    '''25 phases, three of which hold the loop.'''
    rows = [{"number": number, "text": "x" * 20} for number in range(num_rows)]
    for number in range(25):
        if number == 4:
            yield "serialise", lambda: serialise(rows)
        elif number == 11:
            yield "concatenate", lambda: concatenate(seconds)
        elif number == 19:
            yield "fan_out", fan_out
        else:
            yield f"phase_{number:02}", lambda: asyncio.sleep(0.01)

async def boundary_async():
    yield "burn", lambda: burn(0.3)

async def marked(seconds):
    print("of the script")
    with dfx.stage("outer"):
        with dfx.stage("burn"):
            burn(seconds)
        await asyncio.sleep(0.3)

PHASES = {"burn": burn, "sleep": asyncio.sleep}
NUMBERS = [1, 2]

def plain():
    return [("one", lambda: burn(0.1)), ("two", lambda: None)]

def fails():
    with dfx.stage("burn"):
        burn(0.1)
    raise ValueError("no such group")

def ends():
    os._exit(3)

def counts():
    yield 3
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(SCRIPT)
    return path


def attribute(*args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", CLI, "attribute", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def found(script: Path, function: str, inputs: Any = None, *args: str) -> dict[str, Any]:
    file = script.with_name("inputs.json")
    file.write_text(json.dumps(inputs))
    done = attribute(f"{script}:{function}", "--inputs", str(file), "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {phase["name"]: phase for phase in document["phases"]}


def holders(phase: dict[str, Any]) -> str:
    return " ".join(held["name"] for held in phase["held_by"])


def test_each_culprit_of_25_phases_is_named_and_what_waits_behind_it_is_counted(script):
    given = {"num_rows": 100_000, "seconds": 0.4}
    document = found(script, "boundary", given, "--synthetic-traffic", "20")
    phases = by_name(document)
    assert len(set(phases) - {"boundary"}) == 25
    assert document["num_wakes"] > 0
    for name, culprit in {
        "serialise": "json",
        "concatenate": "concatenate",
        "fan_out": "count",
    }.items():
        phase = phases[name]
        assert phase["late_seconds"] <= phase["seconds"] + 1e-6
        assert phase["num_late_wakes"] > 0, name
        assert phase["wake_delay_seconds"] > phase["longest_wake_seconds"]
        if name != "fan_out":  # its loop is late again and again, and answers in between
            assert phase["late_seconds"] >= phase["seconds"] / 2, phase
        assert culprit in holders(phase) or name in holders(phase), phase
    most = [phase["name"] for phase in document["phases"][:4]]
    assert {"concatenate", "fan_out"} <= set(most), "those that hold the loop come first"


def test_phases_are_the_stages_that_a_function_marks(script):
    document = found(script, "marked", {"seconds": 0.4})
    phases = by_name(document)
    assert phases["burn"]["late_seconds"] == pytest.approx(phases["burn"]["seconds"], abs=0.05)
    assert phases["outer"]["late_seconds"] < phases["outer"]["seconds"], "it gave way for a while"
    assert document["phases"][0]["name"] == "burn"
    assert "burn" in holders(phases["burn"])
    assert "child" not in holders(phases["burn"])
    assert document["num_tasks"] == phases["burn"]["num_late_wakes"] == 0


@pytest.mark.parametrize(
    ("function", "inputs", "names"),
    [
        ("PHASES", 0.2, {"burn", "sleep"}),
        ("boundary_async", None, {"burn"}),
        ("plain", None, {"one"}),
    ],
)
def test_phases_may_be_given_in_several_ways(script, function, inputs, names):
    assert names <= set(by_name(found(script, function, inputs)))


def test_the_table_says_who_held_the_loop_and_nothing_else_is_on_stdout(script):
    script.with_name("inputs.json").write_text('{"seconds": 0.3}')
    done = attribute(f"{script}:marked", "--inputs", script.with_name("inputs.json"))
    lines = done.stdout.splitlines()
    assert "of the script" not in done.stdout
    assert "of the script" in done.stderr
    assert lines[1].split()[:4] == ["PHASE", "TOOK", "LOOP", "HELD"]
    assert lines[2].startswith("burn")
    assert "burn (job.py)" in lines[2]


def test_what_was_found_before_a_phase_failed_is_told(script):
    done = attribute(f"{script}:fails")
    assert done.returncode == 1
    assert "burn" in done.stdout
    assert done.stderr.splitlines()[-1] == f"dfx-agent: {script}:fails: ValueError: no such group"
    assert "child.py" not in done.stderr


@pytest.mark.parametrize(
    ("target", "more", "code", "said"),
    [
        ("{}:ends", (), 1, "ended with exit code 3 before its phases were over"),
        ("{}:counts", (), 2, "a phase is a pair of a name and a function, not 3"),
        ("{}:NUMBERS", (), 2, "neither a function nor pairs"),
        ("{}:nothing", (), 2, "has no nothing"),
        ("{}", (), 2, "write SCRIPT.py:FUNCTION"),
        ("/nowhere.py:step", (), 2, "there is no such file"),
        ("{}:plain", ("--inputs", "rows.pt"), 2, "only JSON is read"),
        ("{}:plain", ("--inputs", "{}"), 2, "is no JSON"),
        ("{}:plain", ("--inputs", "/nowhere.json"), 2, "No such file"),
        ("{}:plain", ("--synthetic-traffic", "-1"), 2, "use 0 to"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(script, target, more, code, said):
    done = attribute(target.format(script), *(word.format(script) for word in more))
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert said in line
    assert done.stdout == ""


def test_a_script_that_cannot_be_imported_says_why(script):
    script.write_text("import no_such_package_of_ours\n")
    done = attribute(f"{script}:step")
    assert done.returncode == 1
    assert "no_such_package_of_ours" in done.stderr.splitlines()[-1]
