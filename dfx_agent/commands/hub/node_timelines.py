"""Timelines and full rows of ranks, requested from the agents of their nodes when they are shown.

An answer is bounded in time and in size. A node that cannot be asked is skipped for a while,
and its row shows the reason.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from dfx_agent.base.loopback import is_loopback
from dfx_agent.base.text import plain
from dfx_agent.hub.otlp.intake import AgentTarget
from dfx_agent.job.folds import JobFolds, Seated
from dfx_agent.snapshot import RankRow, TimelineRow
from dfx_agent.snapshot.document import Document

if TYPE_CHECKING:
    import httpx

MAX_BYTES = 8 << 20  # of one node at a time
_NODE_SECONDS, _ALL_SECONDS = 2.5, 3.0
_AT_ONCE = 8
_LEFT_ALONE_SECONDS = 10.0
_MAX_RANKS = 128  # in one answer of an agent

_TIMELINES: Document[tuple[TimelineRow, ...]] = Document(tuple[TimelineRow, ...])
_RANKS: Document[tuple[RankRow, ...]] = Document(tuple[RankRow, ...])

Rank = tuple[str, str]
Timeline = Callable[[str, int, Collection[Rank]], tuple[TimelineRow, ...]]
_Row = TypeVar("_Row", TimelineRow, RankRow)


@dataclass(frozen=True)
class _Request(Generic[_Row]):
    """What a node is asked about some of its ranks, and how an answer is read."""

    path: str
    query: Sequence[tuple[str, str]]
    document: Document[tuple[_Row, ...]]
    local: Callable[[_Row, Seated], _Row]
    """As the job calls its rank, on the clock of this host."""
    of_hub: Callable[[str, str, Collection[Rank]], Iterable[_Row]]
    """(node, run, ranks): of a node that is part of this hub."""


class _UnaskedError(Exception):
    """Why a node cannot be asked, in one line."""


class _Problem(NamedTuple):
    message: str
    until_seconds: float  # monotonic


class NodeTimelines:
    """``targets``: where agents serve. They are shown ``token``, which is the hub's."""

    def __init__(
        self,
        folds: JobFolds,
        targets: Callable[[], Sequence[AgentTarget]],
        token: str | None,
        ca_file: str | None,
        is_local: Callable[[], bool],
        local: Mapping[str, Timeline] | None = None,
    ) -> None:
        """``local``: who is asked for nodes that are part of this hub."""
        self._local = local or {}
        self._folds, self._targets = folds, targets
        self._token, self._ca_file, self._is_local = token, ca_file, is_local
        self._problems: dict[str, _Problem] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_ONCE, "dfx-nodes")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def problems(self) -> Mapping[str, str]:
        """Node -> why the last request failed; only nodes whose problem persists."""
        with self._lock:
            return {node: problem.message for node, problem in self._problems.items()}

    def rows(self, run: str, num_steps: int, ranks: Collection[Rank]) -> tuple[TimelineRow, ...]:
        """Of these ranks, of all for none, on the clock of this host. KeyError on an unknown run.

        A node that does not answer in time is left out.
        """
        request = _Request(
            "timeline",
            [("steps", str(num_steps))],
            _TIMELINES,
            _local_timeline,
            lambda node, name, asked: self._local[node](name, num_steps, asked),
        )
        found = self._requested(run, ranks, request)
        return tuple(sorted(found, key=lambda row: (row.role, row.rank, row.begin_seconds)))

    def rank_rows(self, run: str, ranks: Collection[Rank]) -> tuple[RankRow, ...]:
        """The same of the full rows of these ranks."""
        return tuple(self._requested(run, ranks, _RANK_ROWS))

    def _requested(self, run: str, ranks: Collection[Rank], request: _Request[_Row]) -> list[_Row]:
        asked: dict[str, list[Seated]] = {}
        for seated in self._folds.seated(run):
            if not ranks or seated.rank in ranks:
                asked.setdefault(seated.node, []).append(seated)
        futures = {
            self._pool.submit(self._of_node, node, seats, request): node
            for node, seats in asked.items()
            if not self._is_left_alone(node)
        }
        done, late = wait(futures, _ALL_SECONDS)
        for future in late:
            future.cancel()
            self._note(futures[future], f"no whole answer within {_ALL_SECONDS:g} s")
        return [row for future in done for row in self._rows_of_answer(future, futures[future])]

    def _rows_of_answer(self, future: Future[list[_Row]], node: str) -> Iterable[_Row]:
        error = future.exception()
        if error is None:
            self._note(node, "")
            return future.result()
        if not isinstance(error, _UnaskedError):
            raise error
        self._note(node, str(error))
        return ()

    def _of_node(self, node: str, seats: Sequence[Seated], request: _Request[_Row]) -> list[_Row]:
        if node in self._local:
            asked = {(s.rank[0], s.label): s for s in seats}
            rows = request.of_hub(node, seats[0].run, asked)
            return [request.local(row, asked[row.role, row.rank]) for row in rows]
        url = self._url_of(node, seats[0].run)
        end = time.monotonic() + _NODE_SECONDS
        found: list[_Row] = []
        for begin in range(0, len(seats), _MAX_RANKS):
            some = {(s.rank[0], s.label): s for s in seats[begin : begin + _MAX_RANKS]}
            rows = self._pages(url, seats[0].run, request, some, end)
            found += (request.local(row, some[row.role, row.rank]) for row in rows)
        return found

    def _url_of(self, node: str, run: str) -> str:
        """URL of the agent of ``node`` that reports ``run``."""
        targets = [target for target in self._targets() if target.node == node]
        if not targets:
            raise _UnaskedError("no agent of it serves a page")
        url = next((t.url for t in targets if run in t.runs), targets[0].url)
        if is_loopback(urlsplit(url).hostname or "") and not self._is_local():
            raise _UnaskedError(
                "its agent serves on loopback alone: give it --listen 0.0.0.0:9931 and the token"
            )
        return url

    def _pages(
        self,
        url: str,
        run: str,
        request: _Request[_Row],
        ranks: Mapping[Rank, Seated],
        end: float,
    ) -> Iterator[_Row]:
        """Rows in the order of the agent's answer, page after page."""
        path = f"{url.rstrip('/')}/api/v1/runs/{quote(run, safe='')}/{request.path}"
        names: list[tuple[str, str]] = [("rank", f"{role}/{label}") for role, label in ranks]
        query: str | None = "?" + urlencode([*request.query, *names])
        num_bytes = 0
        while query:
            body, query = self._page(path + query, end, MAX_BYTES - num_bytes)
            num_bytes += len(body)
            try:
                rows = request.document.read(body)
            except ValueError:
                raise _UnaskedError(f"its agent is of another version: no {request.path}") from None
            yield from (row for row in rows if (row.role, row.rank) in ranks)

    def _page(self, url: str, end: float, max_bytes: int) -> tuple[bytes, str | None]:
        """(JSON, query of the next page)."""
        from dfx_agent.base.lean_httpx import httpx

        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            with self._client.stream("GET", url, headers=headers) as answer:
                if answer.status_code == 404:
                    return b"[]", None
                if answer.status_code == 401:
                    raise _UnaskedError(
                        "its agent takes another token than this hub: give both the same"
                    )
                if not answer.is_success:
                    raise _UnaskedError(f"its agent answers HTTP {answer.status_code}")
                body = _bounded(answer.iter_bytes(), end, max_bytes)
                return body, answer.links.get("next", {}).get("url")
        except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
            where = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}"
            reason = " ".join(str(error).split()) or type(error).__name__
            raise _UnaskedError(plain(f"{where} does not answer: {reason}")[:300]) from None

    @cached_property
    def _client(self) -> httpx.Client:
        from dfx_agent.base.lean_httpx import httpx

        # a redirect would take the token elsewhere, and a proxy has no business between us
        return httpx.Client(
            timeout=_NODE_SECONDS,
            trust_env=False,
            follow_redirects=False,
            verify=ssl.create_default_context(cafile=self._ca_file),
        )

    def _is_left_alone(self, node: str) -> bool:
        with self._lock:
            problem = self._problems.get(node)
        return problem is not None and time.monotonic() < problem.until_seconds

    def _note(self, node: str, message: str) -> None:
        """An empty message: it answers."""
        with self._lock:
            if message:
                until = time.monotonic() + _LEFT_ALONE_SECONDS
                self._problems[node] = _Problem(message, until)
            else:
                self._problems.pop(node, None)


def _bounded(parts: Iterable[bytes], end: float, max_bytes: int) -> bytes:
    body = bytearray()
    for part in parts:
        body += part
        if len(body) > max_bytes:
            raise _UnaskedError(f"its answer has more than {MAX_BYTES >> 20} MiB: open fewer ranks")
        if time.monotonic() > end:
            raise _UnaskedError(f"no whole answer within {_NODE_SECONDS:g} s")
    return bytes(body)


def _local_timeline(row: TimelineRow, seated: Seated) -> TimelineRow:
    """As the job calls its rank, on the clock of this host."""
    apart = seated.apart_seconds
    pieces = tuple(
        replace(
            piece, begin_seconds=piece.begin_seconds + apart, end_seconds=piece.end_seconds + apart
        )
        for piece in row.pieces
    )
    end = None if row.end_seconds is None else row.end_seconds + apart
    return replace(
        row, rank=seated.rank[1], begin_seconds=row.begin_seconds + apart, end_seconds=end,
        pieces=pieces,
    )  # fmt: skip


def _local_rank(row: RankRow, seated: Seated) -> RankRow:
    """As the job calls its rank, on the clock of this host."""
    apart = seated.apart_seconds

    def shifted(seconds: float | None) -> float | None:
        return None if seconds is None else seconds + apart

    return replace(
        row,
        rank=seated.rank[1],
        begin_seconds=row.begin_seconds + apart,
        last_event_seconds=shifted(row.last_event_seconds),
        step_begin_seconds=shifted(row.step_begin_seconds),
        inflight=tuple(
            replace(span, begin_seconds=span.begin_seconds + apart) for span in row.inflight
        ),
        scalars=tuple(
            replace(scalar, time_seconds=scalar.time_seconds + apart) for scalar in row.scalars
        ),
        stamps=tuple(
            replace(
                stamp,
                begin_seconds=stamp.begin_seconds + apart,
                end_seconds=shifted(stamp.end_seconds),
            )
            for stamp in row.stamps
        ),
    )


_RANK_ROWS = _Request("ranks", (), _RANKS, _local_rank, lambda *_: ())
