"""A job whose processes start each other in every way; each records a stage of that name.

family.py all URL     start everything, wait until the agent at URL shows it, print it as JSON
family.py one NAME    record NAME and end
family.py exec NAME   become `family.py one NAME` by exec, without a record before
"""

import json
import multiprocessing
import os
import subprocess
import sys
import time
import urllib.request

EVERYONE = {
    "command", "subprocess", "dash_c", "dash_m", "exec", "fork", "mp_fork", "mp_spawn",
    "mp_forkserver",
}  # fmt: skip


def record(name):
    import dfx_agent.shim as dfx

    with dfx.stage(name):
        time.sleep(0.02)


def start_all():
    python = sys.executable
    here = os.path.abspath(__file__)
    subprocess.check_call([python, here, "one", "subprocess"])
    subprocess.check_call([python, here, "exec", "exec"])
    subprocess.check_call([python, "-c", "import family; family.record('dash_c')"], cwd=folder())
    subprocess.check_call([python, "-m", "family", "one", "dash_m"], cwd=folder())
    for method in ("fork", "spawn", "forkserver"):
        child = multiprocessing.get_context(method).Process(target=record, args=(f"mp_{method}",))
        child.start()
        child.join()
        assert child.exitcode == 0, (method, child.exitcode)
    if os.fork() == 0:
        record("fork")
        sys.exit(0)
    assert os.wait()[1] == 0


def folder():
    return os.path.dirname(os.path.abspath(__file__))


def shown_by(url):
    """stage -> states of the processes that recorded it"""
    with urllib.request.urlopen(url + "/api/v1/snapshot") as answer:
        runs = json.load(answer)["runs"]
    shown = {}
    for rank in (rank for run in runs for rank in run["ranks"]):
        for stage in rank["totals"]["stage_seconds"]:
            shown.setdefault(stage, []).append([run_names(runs), rank["state"]])
    return shown


def run_names(runs):
    return ",".join(run["run"] for run in runs)


def main():
    if sys.argv[1] == "one":
        record(sys.argv[2])
    elif sys.argv[1] == "exec":
        os.execv(sys.executable, [sys.executable, __file__, "one", sys.argv[2]])
    else:
        record("command")
        start_all()
        deadline = time.monotonic() + 10
        while set(shown_by(sys.argv[2])) < EVERYONE and time.monotonic() < deadline:
            time.sleep(0.1)
        print(json.dumps(shown_by(sys.argv[2])))


if __name__ == "__main__":
    main()
