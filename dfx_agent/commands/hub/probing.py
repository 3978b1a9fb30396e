"""Probes the hosts of disconnected nodes: a TCP connect to the last address of each agent.

A host that refuses the connection is up, but no agent listens on it. A host that does not answer is
down, or cut off from this hub. A separate thread probes some disconnected nodes at a time.
"""

from __future__ import annotations

import errno
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from dfx_agent.base.log import OncePerPlace
from dfx_agent.base.loopback import is_loopback
from dfx_agent.hub.otlp.intake import AgentTarget
from dfx_agent.job.folds import JobFolds
from dfx_agent.job.roster import Reach

EVERY_SECONDS = 3.0
ANSWER_SECONDS = 2.0
# so many at a time; looking up their names takes no longer than this, the others come next
_AT_ONCE, _NAMES_SECONDS = 64, 5.0
_WELL: tuple[Reach, ...] = ("answers", "refused")

Address = tuple[int, tuple[object, ...]]  # family, as the system takes it


class Probing:
    """Checks whether the hosts of disconnected nodes answer; a node that reports again is dropped.

    ``targets``: where agents serve, by node.
    """

    def __init__(self, folds: JobFolds, targets: Callable[[], Iterable[AgentTarget]]) -> None:
        self._folds, self._targets = folds, targets
        self._is_local = False
        self._reach: dict[str, Reach] = {}
        self._turns: deque[str] = deque()
        self._addresses: dict[str, Address] = {}
        self._log = OncePerPlace("dfx_agent.job")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dfx-probes", daemon=True)

    def start(self, *, is_local: bool) -> None:
        """``is_local``: all nodes are on this machine, so that their loopback is ours."""
        self._is_local = is_local
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def probe(self) -> None:
        """Probe the nodes that are disconnected now, and report the results."""
        silent = self._folds.silent_nodes()
        for node in self._reach.keys() - silent:
            self._report(node, None)
        for node, reach in answers(self._addresses_of(self._next(silent))).items():
            self._report(node, reach)

    def _loop(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            try:
                self.probe()
            except Exception as error:  # noqa: BLE001 (a fault of ours: logged, the loop continues)
                self._log.error("asking whether hosts answer", error)

    def _report(self, node: str, reach: Reach | None) -> None:
        if reach is None:
            self._reach.pop(node, None)
        else:
            self._reach[node] = reach
        self._folds.probed(node, reach)

    def _next(self, silent: Iterable[str]) -> list[str]:
        """The nodes to probe next: those with the oldest probe."""
        silent_nodes = set(silent)
        waiting = [node for node in self._turns if node in silent_nodes]
        self._turns = deque(sorted(silent_nodes - set(waiting)) + waiting)
        chosen = [self._turns.popleft() for _ in range(min(_AT_ONCE, len(self._turns)))]
        self._turns += chosen
        return chosen

    def _addresses_of(self, nodes: Iterable[str]) -> dict[str, list[Address]]:
        """The addresses of the nodes whose address can be resolved."""
        urls: dict[str, list[str]] = {}
        for target in self._targets():
            urls.setdefault(target.node, []).append(target.url)
        end = time.monotonic() + _NAMES_SECONDS
        found = {}
        for node in nodes:
            if time.monotonic() < end:
                addresses = [self._address(url) for url in urls.get(node, ())]
                found[node] = [address for address in addresses if address is not None]
        return found

    def _address(self, url: str) -> Address | None:
        """None of one that cannot be looked up, or that only its own machine reaches."""
        if url not in self._addresses:
            with suppress(OSError, ValueError):
                parts = urlsplit(url)
                if parts.hostname and parts.port and self._may_ask(parts.hostname):
                    info = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
                    self._addresses[url] = info[0][0], info[0][4]
        return self._addresses.get(url)

    def _may_ask(self, host: str) -> bool:
        return self._is_local or not is_loopback(host)


def answers(addresses: Mapping[str, Iterable[Address]]) -> dict[str, Reach]:
    """Node -> how the best of its addresses answers; all are tried at once."""
    found: dict[str, Reach] = {}
    with selectors.DefaultSelector() as selector:
        for node, tried in addresses.items():
            for address in tried:
                _begin(selector, node, address, found)
        _wait(selector, found)
    return found


def _begin(
    selector: selectors.BaseSelector, node: str, address: Address, found: dict[str, Reach]
) -> None:
    family, where = address
    found.setdefault(node, "no answer")
    try:
        probe = socket.socket(family, socket.SOCK_STREAM)
    except OSError:  # no descriptor is left: nothing is known of it
        del found[node]
        return
    probe.setblocking(False)  # noqa: FBT003 (its only argument)
    number = probe.connect_ex(where)
    if number in {errno.EINPROGRESS, errno.EALREADY}:
        selector.register(probe, selectors.EVENT_WRITE, node)
    else:
        _see(found, node, number)
        probe.close()


def _wait(selector: selectors.BaseSelector, found: dict[str, Reach]) -> None:
    """Until all have answered, or the time is over."""
    end = time.monotonic() + ANSWER_SECONDS
    while selector.get_map() and (rest := end - time.monotonic()) > 0:
        for key, _ in selector.select(rest):
            probe = key.fileobj
            assert isinstance(probe, socket.socket)
            _see(found, key.data, probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            selector.unregister(probe)
            probe.close()
    for key in list((selector.get_map() or {}).values()):
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()


def _see(found: dict[str, Reach], node: str, number: int) -> None:
    reach: Reach = "no answer"
    if number == 0:
        reach = "answers"
    elif number == errno.ECONNREFUSED:
        reach = "refused"
    if reach in _WELL and found[node] != "answers":
        found[node] = reach
