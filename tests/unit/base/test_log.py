"""What goes wrong is said in one format, with its traceback, once."""

from __future__ import annotations

import logging

import pytest

from dfx_agent.agent.device_watch import DeviceProblemError
from dfx_agent.base import log
from dfx_agent.node.devices.protocol import DeviceError
from dfx_agent.node.devices.registry import LateDeviceError


@pytest.fixture(autouse=True)
def as_before():
    logger = logging.getLogger("dfx_agent")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = before[0], before[1]
    logger.setLevel(before[2])


def fail() -> None:
    raise ValueError("strange")


def test_every_line_has_our_prefix_and_a_traceback_is_whole(capsys):
    log.configure(None, {})
    once = log.OncePerPlace("dfx_agent.agent")
    for _ in range(3):
        try:
            fail()
        except ValueError as error:
            once.error("reading", error)
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("dfx-agent: ") for line in lines)
    assert sum("reading failed" in line for line in lines) == 1
    assert sum("ValueError: strange" in line for line in lines) == 1
    assert any("in fail" in line for line in lines)


@pytest.mark.parametrize("kind", [DeviceError, LateDeviceError, DeviceProblemError])
def test_each_message_is_printed_once(capsys, kind):
    log.configure(None, {})
    once = log.OncePerPlace("dfx_agent.agent")
    for text in ("the GPU is lost", "the GPU is lost", "permission refused"):
        once.error("device nvidia:3", kind(text))
    reported = [
        line.partition("dfx_agent.agent: ")[2] for line in capsys.readouterr().err.splitlines()
    ]
    assert reported == ["device nvidia:3: the GPU is lost", "device nvidia:3: permission refused"]


@pytest.mark.parametrize(
    ("flag", "variable", "said"),
    [
        (None, {}, ["warning"]),
        ("info", {}, ["info", "warning"]),
        (None, {"DFX_LOG_LEVEL": "error"}, []),
        ("debug", {"DFX_LOG_LEVEL": "error"}, ["debug", "info", "warning"]),
    ],
)
def test_the_level_is_the_flag_s_else_the_environment_s(capsys, flag, variable, said):
    log.configure(flag, variable)
    logger = logging.getLogger("dfx_agent.test")
    for level in ("debug", "info", "warning"):
        logger.log(getattr(logging, level.upper()), level)
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == said


def test_an_unknown_level_is_reported_and_warnings_stay(capsys):
    log.configure(None, {"DFX_LOG_LEVEL": "loud"})
    assert "DFX_LOG_LEVEL=loud: use one of debug" in capsys.readouterr().err
    assert logging.getLogger("dfx_agent").level == logging.WARNING


def test_a_log_that_nobody_takes_stops_nothing(monkeypatch, tmp_path):
    with (tmp_path / "gone").open("w") as gone:
        monkeypatch.setattr("sys.stderr", gone)
        log.configure(None, {})
    logging.getLogger("dfx_agent.agent").error("strange \udcff")
