"""One POST of JSON to a receiver, and when to try again after it failed."""

from __future__ import annotations

import base64
import http.client
import json
import random
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dfx_agent import __version__
from dfx_agent.deadline import WatchedConnection, WatchedTlsConnection, deadline
from dfx_agent.loopback import is_loopback

TIMEOUT_SECONDS = 10.0
# of connecting and of each wait for bytes; all of them together:
EXCHANGE_SECONDS = 20.0
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0

_MAX_ANSWER_BYTES = 200
# "not now"; any other 4xx will be the same the next time
_PASSING_CODES = frozenset({408, 425, 429})


class DeliveryError(Exception):
    """A post that failed, in one line. ``is_final``: the receiver will never take this body."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


@dataclass(frozen=True)
class Endpoint:
    """Where to post and what to show there; the files are read at each post, they may rotate.

    ``basic_auth_file`` holds ``user:password``, ``token_file`` a bearer token; ``ca_file`` is a PEM
    bundle, for https only.
    """

    url: str
    basic_auth_file: str | None = None
    token_file: str | None = None
    ca_file: str | None = None

    @property
    def target(self) -> str:
        """Host and port: paths and queries of webhooks are often secret."""
        parts = urlsplit(self.url)
        return parts.netloc.rpartition("@")[2]

    def post(self, body: Any) -> None:
        """DeliveryError unless the receiver answers 2xx; waits ``EXCHANGE_SECONDS`` at most."""
        data = json.dumps(body, allow_nan=False).encode()
        try:
            request = urllib.request.Request(self.url, data, self._headers(), method="POST")  # noqa: S310 (checked by the configuration)
            with deadline(EXCHANGE_SECONDS):
                self._exchange(request)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            text = " ".join(str(reason).split()) or type(error).__name__
            raise DeliveryError(text) from None

    def _exchange(self, request: urllib.request.Request) -> None:
        try:
            self._opener().open(request, timeout=TIMEOUT_SECONDS).close()
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": f"dfx-agent/{__version__}"}
        if self.token_file is not None:
            headers["Authorization"] = f"Bearer {_secret(self.token_file)}"
        elif self.basic_auth_file is not None:
            pair = base64.b64encode(_secret(self.basic_auth_file).encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        return headers

    def _opener(self) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), _Watched()]
        if is_loopback(urlsplit(self.url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        if self.url.startswith("https:"):
            context = ssl.create_default_context(cafile=self.ca_file)
            handlers.append(_WatchedTls(context=context))
        return urllib.request.build_opener(*handlers)


@dataclass
class Retry:
    """Exponential back-off with full jitter: many agents must not come back at one instant."""

    random: random.Random = field(default_factory=random.Random)
    num_failures: int = 0

    def failed(self) -> float:
        """Seconds until the next attempt: between half and all of a wait that doubles."""
        wait = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0**self.num_failures)
        self.num_failures = min(self.num_failures + 1, 16)
        return wait * self.random.uniform(0.5, 1)

    def succeeded(self) -> None:
        self.num_failures = 0


class _Watched(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(WatchedConnection, req)


class _WatchedTls(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._own_context = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(WatchedTlsConnection, req, context=self._own_context)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without a body, and look like a success."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def _refusal(error: urllib.error.HTTPError) -> DeliveryError:
    with error:
        text = " ".join(error.read(_MAX_ANSWER_BYTES).decode(errors="replace").split())
    is_final = 400 <= error.code < 500 and error.code not in _PASSING_CODES
    # a token that is not there yet, a path that is not served yet: people repair these
    is_final = is_final and error.code not in {401, 403, 404}
    return DeliveryError(f"HTTP {error.code} {text}".strip(), is_final=is_final)


def _secret(file: str) -> str:
    text = Path(file).read_text(encoding="utf-8").strip()
    if not text or "\n" in text:
        raise ValueError(f"{file} must hold one line")
    return text
