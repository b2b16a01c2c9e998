"""Decide which HTTP requests a server answers, before the app sees them (docs/security.md).

A request with the run token is always answered. Any other request must name this server in `Host` (a web page with its
own name for our address cannot) and must not come from another web page. The key `server_access` says which of those
are answered: `same-user` (default) those of processes of the user who runs the server, `token` none, `open` all.

The check is part of uvicorn's protocol class, because there the connection is known: the user of the peer is looked up
once per connection, and headers of proxies cannot change the peer. `tests/serve/test_access.py` fails when uvicorn
changes the attributes used here.
"""

import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Self
from weakref import WeakKeyDictionary

import uvicorn
from starlette.responses import JSONResponse

from nemo_gym.config.keys import value_of
from nemo_gym.global_config import maybe_get_global_config_dict
from nemo_gym.serve.addresses import run_addresses
from nemo_gym.serve.http_protocol import GuardedHttpProtocol, closing_answer
from nemo_gym.serve.peer_user import is_same_user
from nemo_gym.transport.run_token import RUN_TOKEN_ENV_VAR, RUN_TOKEN_HEADER

_TOKEN_HEADER = RUN_TOKEN_HEADER.encode()
_KEY_HEADERS = frozenset({_TOKEN_HEADER, b"authorization", b"x-api-key", b"api-key"})
"""Headers that may contain the run token: ours, and those in which clients of model APIs send their key."""
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/\s]+)(:[0-9]*)?")

Headers = list[tuple[bytes, bytes]]
Refusal = tuple[int, str]
"""Status and message."""

NO_HOST = (400, "the request must have exactly one Host header")
FROM_PAGE = (403, "requests from web pages of other origins are not answered")
NO_TOKEN = f"the run token is missing; send it in the header {RUN_TOKEN_HEADER} or as API key"
NOT_SAME_USER = f"only processes of the user who runs this server may call it without the run token; {NO_TOKEN}"


@dataclass(frozen=True)
class AccessPolicy:
    """The requests that the servers of one run answer."""

    mode: str = "same-user"
    token: bytes = field(default=b"", repr=False)
    hosts: frozenset[str] = frozenset()
    """Lower-case host names and addresses of the run, in addition to loopback and the address of the connection."""
    is_loopback_only: bool = True
    """True if all servers of the run have loopback addresses."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], token: str | None) -> Self:
        """Return the policy for the servers of a configuration."""
        hosts = {str(host).lower() for host, _ in run_addresses(config) if host}
        is_loopback_only = all(_is_loopback(host) for host in hosts)
        names = hosts if is_loopback_only else hosts | {socket.gethostname().lower()}
        return cls(str(value_of(config, "server_access")), (token or "").encode(), frozenset(names), is_loopback_only)

    def take_token(self, headers: Headers) -> bool:
        """Return True if a header contains the run token; remove our header, and any other that contains the token.

        Handlers, logs and captures therefore never see the token.
        """
        has_token = False
        for header in [header for header in headers if header[0] in _KEY_HEADERS]:
            words = header[1].split()  # a key may follow the word Bearer
            is_match = bool(self.token and words) and secrets.compare_digest(words[-1], self.token)
            has_token = has_token or is_match
            if is_match or header[0] == _TOKEN_HEADER:
                headers.remove(header)
        return has_token

    def address_refusal(self, headers: Headers, http_version: str, local_address: str) -> Refusal | None:
        """Return the refusal of a request for another host name or from a web page of another origin, else None."""
        if self.mode == "open" and not self.is_loopback_only:  # the user trusts this network, with names unknown here
            return None
        values = {name: value for name, value in headers if name in (b"host", b"origin", b"sec-fetch-site")}
        host = values.get(b"host")
        if host is None and http_version == "1.0":  # that version has no Host header, and browsers do not use it
            return None
        if host is None or sum(name == b"host" for name, _ in headers) > 1:
            return NO_HOST
        name = _host_name(host)
        if name is None or not (_is_loopback(name) or name in self.hosts or name == local_address):
            shown = host[:80].decode("latin-1")
            return 421, f"{shown!r} is not a name of this server; use localhost or its configured host"
        origin, site = values.get(b"origin"), values.get(b"sec-fetch-site", b"none")
        if site not in (b"none", b"same-origin") or (origin is not None and origin.partition(b"://")[2] != host):
            return FROM_PAGE
        return None


@lru_cache(maxsize=256)
def _host_name(host: bytes) -> str | None:
    """Return the name or address in a Host header, in lower case and without brackets; None if it is malformed."""
    match = _HOST.fullmatch(host)
    return match.group(1).decode("latin-1").lower().strip("[]") if match else None


@lru_cache(maxsize=256)
def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


policies: WeakKeyDictionary[uvicorn.Config, AccessPolicy] = WeakKeyDictionary()
"""The policy of each listener; a listener without one has the policy of this process, made on first use."""


def _policy_of(config: uvicorn.Config) -> AccessPolicy:
    policy = policies.get(config)
    if policy is None:
        policy = AccessPolicy.from_config(maybe_get_global_config_dict() or {}, os.environ.get(RUN_TOKEN_ENV_VAR))
        policies[config] = policy
    return policy


class CheckedProtocol(GuardedHttpProtocol):
    """The HTTP protocol with limits that answers refused requests itself and closes their connection."""

    _is_same_user: bool | None = None
    _refusal: Refusal | None = None

    def on_headers_complete(self) -> None:
        self._refusal = self._check_request()
        self.app = self.config.loaded_app
        if self._refusal is not None:
            status, message = self._refusal
            self.app = JSONResponse({"detail": message}, status, {"connection": "close"})  # does not read the body
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection to the WebSocket protocol, or refuse it here: that protocol does not use `self.app`."""
        if self._refusal is None:
            super().handle_websocket_upgrade()
            return
        self.transport.write(closing_answer(*self._refusal))
        self.transport.close()

    def _check_request(self) -> Refusal | None:
        """Return why the current request is not answered; None if it is."""
        policy = _policy_of(self.config)
        if policy.take_token(self.headers):
            return None
        local_address = self.server[0] if self.server else ""
        refusal = policy.address_refusal(self.headers, self.parser.get_http_version(), local_address)
        if refusal is not None or policy.mode == "open":
            return refusal
        if policy.mode == "token":
            return 401, NO_TOKEN
        return None if self._is_from_same_user() else (401, NOT_SAME_USER)

    def _is_from_same_user(self) -> bool:
        if self._is_same_user is None:
            local = self.server
            is_unix_socket = self.client is None or local is None or local[1] is None
            self._is_same_user = is_unix_socket or is_same_user(self.client, (local[0], local[1]))  # type: ignore[index,arg-type]
        return self._is_same_user
