"""The run token: a secret that the processes of a run send with their HTTP requests to each other.

Every client of this package looks up the token of the address that it calls, so only servers of a run receive it.
`serve.access` is the server side. The token is never part of a configuration, a log or a record.
"""

import os
import re
import secrets
from collections.abc import Iterable
from typing import Any

from nemo_gym.config.secret_text import remember_secrets
from nemo_gym.errors import ConfigError

RUN_TOKEN_ENV_VAR = "NEMO_GYM_RUN_TOKEN"
"""Environment variable with the token, set for every server process of a run; set by a user, it chooses the token."""
RUN_TOKEN_HEADER = "x-nemo-gym-run-token"

_VALID_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,200}", re.ASCII)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1", "::"})
_tokens: dict[tuple[str, int], str] = {}


def address_key(host: str, port: int) -> tuple[str, int]:
    """Return the key of an address in tables. All loopback names have the same key."""
    return ("localhost" if host.lower() in _LOOPBACK else host.lower(), port)


def choose_token() -> str:
    """Return the token for a new run: that of the environment, or a random one.

    Raises:
        ConfigError: the token of the environment has a wrong length or characters that are not allowed.
    """
    token = os.environ.get(RUN_TOKEN_ENV_VAR) or secrets.token_urlsafe(32)
    if not _VALID_TOKEN.fullmatch(token):
        problem = "the run token must consist of 16 to 200 letters, digits and the characters . _ ~ -"
        raise ConfigError(problem, where=RUN_TOKEN_ENV_VAR, fix="unset it: every run then gets a random token")
    return token


def adopt(addresses: Iterable[tuple[Any, Any]], token: str | None) -> None:
    """Send `token` with every request of this process to these hosts and ports; without a token, do nothing."""
    if token:
        remember_secrets([token])  # a server whose error or output contains its environment must not reveal it
        _tokens.update({address_key(host, port): token for host, port in addresses if host and port})


def forget(addresses: Iterable[tuple[Any, Any]]) -> None:
    """Send no token to these hosts and ports any more."""
    for host, port in addresses:
        if host and port:
            _tokens.pop(address_key(host, port), None)


def token_for(host: str | None, port: int | None) -> str | None:
    """Return the token of the run that serves this address; None if the address belongs to no known run."""
    return _tokens.get(address_key(host, port)) if _tokens and host and port else None


token_for_key = _tokens.get
"""Return the token of the run that serves the address with an `address_key`, as `token_for` does."""


def headers_for(host: str, port: int) -> dict[str, str]:
    """Return the header with the token of an address; empty without one."""
    token = token_for(host, port)
    return {RUN_TOKEN_HEADER: token} if token else {}
