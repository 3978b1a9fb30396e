"""Posts JSON to a receiver, and computes when to retry after a failure."""

from __future__ import annotations

import json
import random
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dfx_agent import __version__
from dfx_agent.base.deadline import deadline, watched_stream
from dfx_agent.base.loopback import is_loopback

if TYPE_CHECKING:
    import httpx

TIMEOUT_SECONDS = 10.0  # limit of connecting and of each wait for bytes
EXCHANGE_SECONDS = 20.0  # limit of a whole exchange
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0

_MAX_ANSWER_BYTES = 200
# temporary errors; any other 4xx is final
_PASSING_CODES = frozenset({408, 425, 429})


class DeliveryError(Exception):
    """A post that failed, in one line. ``is_final``: the receiver will never accept the body."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


@dataclass(frozen=True)
class Endpoint:
    """Address and credentials of a receiver.

    The files are read at each post, as they may rotate.
    """

    url: str
    basic_auth_file: str | None = None
    """File with ``user:password``."""
    token_file: str | None = None
    """File with a bearer token."""
    ca_file: str | None = None
    """PEM bundle, for https only."""

    @property
    def target(self) -> str:
        """Host and port without path and query, which are often secret."""
        parts = urlsplit(self.url)
        return parts.netloc.rpartition("@")[2]

    def post(self, body: Any) -> None:
        """Post ``body``. Raises DeliveryError unless the receiver answers 2xx within 20 s."""
        from dfx_agent.base.lean_httpx import httpx  # noqa: PLC0415 (0.1 s of every start)

        data = json.dumps(body, allow_nan=False).encode()
        try:
            with (
                deadline(EXCHANGE_SECONDS),
                self._client() as client,
                client.stream("POST", self.url, content=data, auth=self._user(),
                              extensions={"trace": watched_stream}) as answer,
            ):  # fmt: skip
                if not answer.is_success:
                    raise _refusal(answer)
        except (OSError, ValueError, ImportError, httpx.HTTPError, httpx.InvalidURL) as error:
            # ImportError: a SOCKS proxy in the environment
            text = " ".join(str(error).split()) or type(error).__name__
            raise DeliveryError(text) from None

    def _client(self) -> httpx.Client:
        from dfx_agent.base.lean_httpx import httpx  # noqa: PLC0415 (0.1 s of every start)

        parts = urlsplit(self.url)
        return httpx.Client(
            headers=self._headers(),
            timeout=TIMEOUT_SECONDS,
            trust_env=not is_loopback(parts.hostname or ""),  # the proxies of the environment
            # a redirected POST would arrive as a GET without a body, and look like a success
            follow_redirects=False,
            verify=parts.scheme == "https" and ssl.create_default_context(cafile=self.ca_file),
        )

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept-Encoding": "identity",  # the start of an error body is shown as received
            "Content-Type": "application/json",
            "User-Agent": f"dfx-agent/{__version__}",
        }
        if self.token_file is not None:
            headers["Authorization"] = f"Bearer {_secret(self.token_file)}"
        return headers

    def _user(self) -> tuple[str, str] | None:
        if self.basic_auth_file is None or self.token_file is not None:
            return None
        name, _, password = _secret(self.basic_auth_file).partition(":")
        return name, password


@dataclass
class Retry:
    """Exponential back-off with jitter, so that many agents do not retry at the same time."""

    random: random.Random = field(default_factory=random.Random)
    num_failures: int = 0

    def failed(self) -> float:
        """Seconds until the next attempt: 50 to 100 % of a wait that doubles each time."""
        wait = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0**self.num_failures)
        self.num_failures = min(self.num_failures + 1, 16)
        return wait * self.random.uniform(0.5, 1)

    def succeeded(self) -> None:
        self.num_failures = 0


def _refusal(answer: httpx.Response) -> DeliveryError:
    code, start = answer.status_code, next(answer.iter_raw(_MAX_ANSWER_BYTES), b"")
    text = " ".join(start[:_MAX_ANSWER_BYTES].decode(errors="replace").split())
    is_final = 400 <= code < 500 and code not in _PASSING_CODES
    # a missing token or path can be repaired, so these errors are retried
    is_final = is_final and code not in {401, 403, 404}
    return DeliveryError(f"HTTP {code} {text}".strip(), is_final=is_final)


def _secret(file: str) -> str:
    text = Path(file).read_text(encoding="utf-8").strip()
    if not text or "\n" in text:
        raise ValueError(f"{file} must hold one line")
    return text
