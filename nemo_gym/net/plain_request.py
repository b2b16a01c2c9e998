"""A request over a plain connection: which calls are simple enough for one, and what goes over the wire."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from yarl import URL

_UNSUITABLE = frozenset({"expect", "transfer-encoding", "connection", "upgrade", "content-length", "host"})
_SUITABLE_OPTIONS = frozenset({"data", "headers"})


def suits(method: str, url: URL, options: Mapping[str, Any]) -> bool:
    """Whether a call is simple enough: a body of bytes (or none) to an `http` address, and nothing but headers."""
    return (
        method in ("POST", "GET")
        and options.keys() <= _SUITABLE_OPTIONS
        and isinstance(options.get("data", b""), bytes)
        and _is_plain(url)
        and _are_plain(tuple(options.get("headers") or ()))
    )


@lru_cache(maxsize=1024)
def _is_plain(url: URL) -> bool:
    return url.scheme == "http" and url.raw_user is None


@lru_cache(maxsize=1024)
def _are_plain(names: tuple[str, ...]) -> bool:
    return _UNSUITABLE.isdisjoint(name.lower() for name in names)


def written(
    method: str, url: URL, headers: Mapping[str, str], body: bytes, once: tuple[str, str] | None = None
) -> bytes:
    """The request as it goes over the wire.

    Raises:
        ValueError: a header would be taken for several.
    """
    head = _head(method, url, tuple(headers.items()))
    last = "" if once is None else f"\r\n{_line(*once)}"
    return b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (head, last.encode("utf-8"), len(body), body)


@lru_cache(maxsize=1024)
def _head(method: str, url: URL, headers: tuple[tuple[str, str], ...]) -> bytes:
    """The lines that a client sends again and again."""
    first = f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\nAccept: */*"
    return "\r\n".join([first, *(_line(name, value) for name, value in headers)]).encode("utf-8")


def _line(name: str, value: str) -> str:
    if "\n" in value or "\r" in value or "\n" in name or "\r" in name or "\0" in value:
        raise ValueError("Newline, carriage return, or null byte detected in headers. Potential header injection.")
    return f"{name}: {value}"
