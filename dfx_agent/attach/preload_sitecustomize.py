"""Installed as ``sitecustomize.py`` on PYTHONPATH by ``dfx-agent run``: arms the guest.

It comes before the environment's own ``sitecustomize``, so it runs that one too. It starts no
process, and its folder stays in PYTHONPATH for children, so it cannot recurse.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_shadowed_python_2():  # noqa: ANN202 (Python 2 reads this file too)
    # type: () -> None
    imp = __import__("imp")
    try:
        found = imp.find_module("sitecustomize", sys.path)
    except ImportError:
        return
    imp.load_module("sitecustomize", *found)


def _run_shadowed():  # noqa: ANN202
    # type: () -> None
    try:
        from importlib.machinery import PathFinder  # noqa: PLC0415 (every interpreter start pays)
        from importlib.util import module_from_spec  # noqa: PLC0415
    except ImportError:  # Python 2
        _run_shadowed_python_2()
        return
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


def _arm():  # noqa: ANN202
    # type: () -> None
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    if os.environ.get("DFX_AGENT") != "1" or sys.version_info < (3, 10) or not gil:
        return
    sys.path.append(os.path.join(_HERE, "guest"))
    try:
        from dfx_agent.shim.bootstrap import arm  # noqa: PLC0415 (only when enabled)

        arm()
    except Exception as error:  # noqa: BLE001 (never into the job)
        sys.stderr.write("dfx-agent: the guest does not load here (" + repr(error) + ")\n")


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
_arm()
_run_shadowed()
