"""Texts for processes of kinds that need a kernel, an interpreter or a right of their own."""

import json
import subprocess
import sys

import pytest

from dfx_agent.attach import preflight, procfs
from dfx_agent.attach import target as targets
from dfx_agent.base.errors import AttachError

CHECK = """
import json, sys
from dfx_agent.attach import preflight
checked = preflight.check(int(sys.argv[1]))
print(json.dumps(sorted({str(route.refusal) for route in checked.routes})))
"""


@pytest.fixture
def python():
    """The pid of an idle Python."""
    code = "import time; print(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    yield child.pid
    child.kill()
    child.communicate()


def can_make_user_namespaces() -> bool:
    made = subprocess.run(["unshare", "-Ur", "true"], check=False, capture_output=True)
    return made.returncode == 0


@pytest.mark.skipif(not can_make_user_namespaces(), reason="`unshare -Ur` is not allowed here")
def test_an_agent_inside_a_user_namespace(python):
    command = ["unshare", "-Ur", sys.executable, "-c", CHECK, str(python)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert json.loads(result.stdout) == [
        f"pid {python} is outside the user namespace of this agent; run the agent outside of it"
    ]


def test_a_free_threaded_python(python):
    with targets.open_target(python) as target:
        runtime = target.runtime._replace(is_free_threaded=True)
        with pytest.raises(AttachError) as refused:
            targets._check_runtime(python, runtime)
    assert str(refused.value) == (
        f"pid {python} runs free-threaded Python {runtime.version_text}; "
        "run the job on a build with the GIL"
    )


def test_a_shadow_stack(python):
    with targets.open_target(python) as target:
        status = procfs.status(python)._replace(has_shadow_stack=True)
        checked = preflight.check_target(target._replace(status=status))
    expected = (
        f"pid {python} runs with a shadow stack, which ptrace injection would break; "
        "start the job with `dfx-agent run`"
    )
    refused = {route.name: str(route.refusal) for route in checked.routes}
    assert refused["thread"] == refused["pending"] == expected
