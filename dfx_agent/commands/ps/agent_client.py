"""The agent that a verb asks: the one that was named, else the one that follows the folder."""

from __future__ import annotations

import argparse
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from dfx_agent.agent import folder_token
from dfx_agent.agent.config import Config, load
from dfx_agent.base.errors import DfxError, UsageError
from dfx_agent.node.segments import lock
from dfx_agent.shim.attached import is_agent_present
from dfx_agent.snapshot import SignalHistory, Snapshot, TimelineRow
from dfx_agent.snapshot.document import Document

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:9931"

_TIMEOUT_SECONDS = 5.0
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class NoAnswerError(DfxError):
    """The agent does not answer, or not us."""


@dataclass(frozen=True)
class AskedAgent:
    """Where it answers and what to show there.

    ``certificate`` is the PEM file that it must show, "": what the system trusts. ``pids``: one of
    them must be the agent's, empty for an agent that the user named. ``is_guess``: it may well not
    be there.
    """

    url: str
    token: str | None = None
    certificate: str = ""
    pids: frozenset[int] = frozenset()
    is_guess: bool = False

    def snapshot(self, num_steps: int | None = None) -> Snapshot | None:
        """None from an agent of another folder; NoAnswerError when there is no answer.

        ``num_steps``: at most this many closed steps of each run, all that the agent holds by
        default.
        """
        given = self._get_page("/api/v1/snapshot", _steps_query(num_steps))[0]
        try:
            agent, is_known = given["agent"], all("standing" in r for r in given["runs"])
            pids = {agent.get("pid"), agent.get("other_agent_pid")}
        except (KeyError, TypeError, AttributeError) as error:
            raise self._no_answer(str(error)) from None
        if self.pids and not pids & self.pids:
            return None
        if not is_known:
            version = agent.get("version")
            raise NoAnswerError(f"{self.url} is an older dfx-agent ({version}): restart it")
        return self._loaded(Document[Snapshot](Snapshot), given)

    def timeline(self, run: str, num_steps: int) -> tuple[TimelineRow, ...]:
        """The latest steps of each rank; NoAnswerError when there is no answer.

        A hub asks the nodes; its snapshot names the nodes that it could not ask.
        """
        path = f"/api/v1/runs/{quote(run, safe='')}/timeline"
        given: list[Any] = []
        query = f"?steps={num_steps}"
        while query:  # in pages, where there are many ranks
            page, query = self._get_page(path, query)
            given += page
        rows = Document[tuple[TimelineRow, ...]](tuple[TimelineRow, ...])
        return self._loaded(rows, given)

    def signals(self, run: str, num_steps: int) -> SignalHistory:
        """Training health over the latest steps; NoAnswerError when there is no answer."""
        path = f"/api/v1/runs/{quote(run, safe='')}/signals"
        given = self._get_page(path, _steps_query(num_steps))[0]
        return self._loaded(Document[SignalHistory](SignalHistory), given)

    def _loaded(self, document: Document[T], given: Any) -> T:
        try:
            return document.loaded(given)
        except ValueError:
            why = "does not speak this version's language"
            raise NoAnswerError(f"{self.url} {why}: restart the agent") from None

    def _no_answer(self, reason: str) -> NoAnswerError:
        doubt = "" if self.pids else ": is an agent there?"
        return NoAnswerError(f"{self.url} does not answer ({' '.join(reason.split())}){doubt}")

    def _get_page(self, path: str, query: str) -> tuple[Any, str]:
        """(JSON, query of the next page or ""); NoAnswerError."""
        from dfx_agent.base.lean_httpx import httpx  # 0.1 s of every start

        try:
            with self._client() as client:
                answer = client.get(self.url.rstrip("/") + path + query)
            if answer.is_success:
                return answer.json(), answer.links.get("next", {}).get("url", "")
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._no_answer(str(error) or type(error).__name__) from None
        if answer.status_code == 401:
            wanted = "its token" if self.token is None else "another token than this one"
            raise NoAnswerError(f"{self.url} wants {wanted}: give --token-file FILE")
        raise self._no_answer(f"HTTP {answer.status_code} {answer.reason_phrase}")

    def _client(self) -> httpx.Client:
        from dfx_agent.base.lean_httpx import httpx  # 0.1 s of every start

        is_https = self.url.startswith("https:")
        return httpx.Client(
            headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
            timeout=_TIMEOUT_SECONDS,
            # a proxy for the Internet has no business between us and an agent
            trust_env=False,
            follow_redirects=True,  # the token goes along on the same host only
            verify=_only(self.certificate) if self.certificate
            else is_https and ssl.create_default_context(),
        )  # fmt: skip


def _steps_query(num_steps: int | None) -> str:
    return "" if num_steps is None else f"?steps={num_steps}"


def settings_of(args: argparse.Namespace) -> Config:
    """The settings, with the folder of ``--dir``."""
    return load({"directory": args.directory}, os.environ, None)


def asked_agent(args: argparse.Namespace, config: Config) -> AskedAgent | None:
    """The agent of ``--url``, else the one that follows the folder; None if there is none."""
    token = token_in(args.token_file)
    return named(args.url, token) if args.url else of_folder(config, token)


def named(url: str, token: str | None) -> AskedAgent:
    """The agent of ``--url``."""
    if not _is_http(url):
        raise UsageError(f"--url {url}: write http://HOST:PORT")
    return AskedAgent(url, token)


def of_folder(config: Config, token: str | None) -> AskedAgent | None:
    """The agent that holds the folder's lock; None if no agent does, or if it is unclear.

    Without ``token``, the token of the settings is sent.
    """
    if not is_agent_present(config.directory):
        return None
    holder, is_by_us = lock.holder_of(config.directory)
    if holder is None:
        return None
    if is_by_us:  # else somebody else chose where it would be shown
        token = token or token_in(config.token_file) or folder_token.read(config.directory)
    pids = frozenset({holder.pid})
    if not _is_http(holder.url):  # an older agent, or one that is starting
        return AskedAgent(DEFAULT_URL, token, pids=pids, is_guess=True)
    return AskedAgent(holder.url, token, holder.certificate, pids)


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _only(certificate: str) -> ssl.SSLContext:
    """Trusts the very certificate that the agent was started with, under whatever name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    text = Path(certificate).read_text(encoding="ascii", errors="replace")
    first = text.partition(_BEGIN)[2].partition(_END)[0]
    context.load_verify_locations(cadata=f"{_BEGIN}{first}{_END}\n")
    return context


def token_in(file: str | None) -> str | None:
    """UsageError when the file cannot be read; None without one."""
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
