"""One outgoing HTTP call: with a deadline, tried again only as long and as often as that is safe.

A request may be repeated when it cannot have had an effect: the method is safe, the caller says repeating is harmless
(`safe_to_repeat`), the connection was never made, or the server refused it before doing the work. A connection lost
after the request left is none of these: the other side may have executed it.
"""

import asyncio
import logging
import math
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

from aiohttp import (
    ClientConnectionError,
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    ServerFingerprintMismatch,
)
from yarl import URL

from nemo_gym.config.secrets import mask_text
from nemo_gym.errors import CircuitOpen, ConfigError, DeadlineExceeded, ServerUnreachable
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.net import deadline, plain_http, sessions
from nemo_gym.net.encode import encode_json
from nemo_gym.net.health import EndpointHealth, HealthBook, describe
from nemo_gym.net.retry import SAFE_METHODS, SERVER_CALL, RetryPolicy, next_pause, parse_retry_after, worth_repeating

logger = logging.getLogger("nemo_gym.net")

health = HealthBook()
"""Endpoints that failed since their last answer, process-wide."""

RESTARTING = 10
"""So many times longer than for one nobody ever reached we wait for an endpoint that has answered before."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REPLAYABLE = (bytes, bytearray, str, dict, list, tuple)


@dataclass(slots=True)
class _Call:
    """One call and what has become of it so far."""

    method: str
    url: str
    where: str
    policy: RetryPolicy
    repeatable: bool
    """The whole request can be sent twice without harm."""
    replayable: bool
    """The body can be sent twice at all; a stream cannot."""
    options: dict[str, Any]
    expires: float
    endpoint: str
    address: URL
    plain: bool
    """It is simple enough for the pool of plain connections."""
    unhurried: bool
    """The caller set no time of its own, so only the deadline in force counts."""
    started: float = field(default_factory=time.monotonic)
    failures: int = 0

    def left(self) -> float:
        return self.expires - time.monotonic()

    def pause_before_repeat(self, retry_after: float | None = None) -> float | None:
        return next_pause(
            self.policy,
            failures=self.failures,
            spent=time.monotonic() - self.started,
            left=self.left(),
            uniform=random.uniform,
            retry_after=retry_after,
        )


async def send(
    method: str,
    url: str | URL,
    *,
    policy: RetryPolicy = SERVER_CALL,
    where: str | None = None,
    safe_to_repeat: bool = False,
    session: ClientSession | None = None,
    **options: Any,
) -> ClientResponse:
    """Send a request and return the response, whatever its status. `options` are those of `ClientSession.request`.

    `where` names the callee in errors and logs; without it the address does.

    Raises:
        ServerUnreachable: no answer, and the retry budget is used up or repeating is not safe.
        CircuitOpen: the endpoint failed so often that it is resting, and would rest longer than the call may wait.
        DeadlineExceeded: the deadline in force (or the default one) passed.
        ConfigError: the address is not one.
    """
    call = _prepare(method, url, policy, where, safe_to_repeat, options)
    while True:
        if len(health):  # else everybody answers
            await _wait_for_circuit(call)
        try:
            if call.plain and session is None:
                response = await _plain_attempt(call)
            else:
                response = await _attempt(call, session or sessions.current_session())
        except (ClientConnectionError, ClientPayloadError) as error:
            await _after_no_answer(call, error)
            continue
        except TimeoutError as error:
            _abandon(call)
            raise _too_late(call) from error
        except asyncio.CancelledError:
            deadline.blame(call.where)
            _abandon(call)
            raise
        except BaseException:
            _abandon(call)
            raise
        wait = _wait_before_repeating(call, response)
        if wait is None:
            return response
        response.release()
        await asyncio.sleep(wait)


def _prepare(
    method: str,
    url: str | URL,
    policy: RetryPolicy,
    where: str | None,
    safe_to_repeat: bool,
    options: dict[str, Any],
) -> _Call:
    method = method.upper()
    try:
        address, endpoint = _address(url)
    except ValueError:
        raise ConfigError(
            f"{mask_text(str(url))!r} is not an HTTP address", where=where, fix="http://<host>:<port>/<path>"
        ) from None
    _encode_json(options)
    timeout, limit = options.get("timeout"), deadline.remaining()
    if timeout is not None:
        limit = deadline.sooner(limit, _total(timeout))
    if limit is None:
        limit = sessions.settings().request_timeout_seconds
    body = options.get("data")
    return _Call(
        method=method,
        url=str(url),
        where=where or endpoint,
        policy=policy,
        repeatable=safe_to_repeat or method in SAFE_METHODS,
        replayable=body is None or isinstance(body, _REPLAYABLE),
        options=options,
        expires=time.monotonic() + limit,
        endpoint=endpoint,
        address=address,
        plain=plain_http.suits(method, address, options),
        unhurried=timeout is None,
    )


@lru_cache(maxsize=1024)
def _address(url: str | URL) -> tuple[URL, str]:
    """A URL, and `host:port` of it.

    Raises:
        ValueError: it is not an HTTP address.
    """
    address = URL(url) if isinstance(url, str) else url
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError("not an HTTP address")
    return address, f"{address.host}:{address.port}"


def _encode_json(options: dict[str, Any]) -> None:
    """Replace `json` by its bytes: encoded once for all attempts, and faster than aiohttp would."""
    body = options.pop("json", None)
    if body is None:
        return
    options["data"] = encode_json(body)
    options["headers"] = with_header(options.get("headers"), "Content-Type", "application/json")


def with_header(headers: Any, name: str, value: str) -> dict[str, str]:
    """`headers` with `name: value` unless they already say something about `name`; never changed themselves."""
    if type(headers) is dict and name in headers:
        return headers
    copy = dict(headers or {})
    wanted = name.lower()
    for key in copy:
        if key.lower() == wanted:
            return copy
    copy[name] = value
    return copy


def _total(timeout: Any) -> float | None:
    """The caller's own limit: a number of seconds or an aiohttp ClientTimeout."""
    if isinstance(timeout, ClientTimeout):
        return timeout.total
    return float(timeout) if isinstance(timeout, int | float) else None


async def _wait_for_circuit(call: _Call) -> None:
    """Wait while the endpoint rests, if that fits into the call's budget.

    The rest costs time but no attempt: nothing was sent.
    """
    while (known := health.known(call.endpoint)) is not None and (rest := known.breaker.admit()) > 0:
        spent = time.monotonic() - call.started
        patience = _patience(call, known)
        too_long = min(rest, patience) >= call.left() or spent + rest > call.policy.budget_seconds
        if patience <= 0:
            raise CircuitOpen(
                f"{call.endpoint} has taken no connection for {known.closed_seconds():.0f} s",
                where=call.where,
                fix="check that it runs and that its host and port are right (unreachable_timeout_seconds: the wait)",
            )
        if too_long or call.policy.attempts == 1:
            raise CircuitOpen(
                f"{call.endpoint} does not answer and is left alone for {rest:.1f} s more",
                where=call.where,
                fix="look at that server's log; it may have stopped",
            )
        await asyncio.sleep(min(rest * random.uniform(1.0, 1.25), patience))


def _patience(call: _Call, known: EndpointHealth) -> float:
    """How much longer an endpoint that takes no connection is waited for, however many calls do."""
    if not call.policy.leaves_the_closed:
        return math.inf
    limit = sessions.settings().unreachable_timeout_seconds
    if call.endpoint in health.met:
        limit *= RESTARTING
    return limit - known.closed_seconds()


async def _plain_attempt(call: _Call) -> ClientResponse:
    left = call.left()
    if left <= 0:
        raise TimeoutError
    asking = sessions.current_pool().request(
        call.method,
        call.address,
        call.options.get("headers") or {},
        call.options.get("data", b""),
        once=(DEADLINE_HEADER, deadline.passed_on(left)),
    )
    if call.unhurried and deadline.watched() is not None:
        response = await asking
    else:
        async with asyncio.timeout(left):
            response = await asking
    if response.status in REDIRECTS:
        call.plain = False  # it was not done here; aiohttp knows how to go on
        return await _attempt(call, sessions.current_session())
    return cast("ClientResponse", response)


async def _attempt(call: _Call, session: ClientSession) -> ClientResponse:
    left = call.left()
    if left <= 0:
        raise TimeoutError
    given = call.options.get("timeout")
    limits = given if isinstance(given, ClientTimeout) else ClientTimeout()
    connect = limits.sock_connect or sessions.settings().connect_timeout_seconds
    options = {
        **call.options,
        "timeout": ClientTimeout(total=left, connect=limits.connect, sock_read=limits.sock_read, sock_connect=connect),
        "headers": with_header(call.options.get("headers"), DEADLINE_HEADER, deadline.passed_on(left)),
    }
    return await session.request(call.method, call.url, **options)


async def _after_no_answer(call: _Call, error: Exception) -> None:
    """Pause before the next attempt, or raise when there is none."""
    call.failures += 1
    never_connected = isinstance(error, ClientConnectorError | ConnectionTimeoutError)
    known = health.entry(call.endpoint)
    known.failed(call.where, error, connected=not never_connected)
    if sessions.settings().global_aiohttp_client_request_debug:
        logger.warning("%s %s to %s, attempt %d", call.method, call.url, call.where, call.failures, exc_info=error)
    hopeless = isinstance(error, ClientConnectorCertificateError | ServerFingerprintMismatch)
    may_repeat = call.replayable and not hopeless and (call.repeatable or never_connected)
    wait = call.pause_before_repeat() if may_repeat else None
    patience = _patience(call, known)
    if wait is None or patience <= 0:
        raise _unreachable(call, error, never_connected) from error
    await asyncio.sleep(min(wait, patience))


def _wait_before_repeating(call: _Call, response: ClientResponse) -> float | None:
    """Seconds until the request is sent again because of the answer's status, or None to keep the answer."""
    if not isinstance(response.status, int) or response.status < 400:  # a stand-in in a test may have no status
        if len(health):
            health.answered(call.endpoint, call.where)
        if call.policy.leaves_the_closed:
            health.met.add(call.endpoint)
        return None
    known = health.known(call.endpoint)
    if known is not None:
        known.answered()
    call.failures += 1
    retry_after = parse_retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
    if not call.replayable or not worth_repeating(call.policy, response.status, call.failures, retry_after):
        return None
    if response.status not in (429, 503) and not call.repeatable:
        return None
    wait = call.pause_before_repeat(retry_after)
    if wait is not None:
        health.entry(call.endpoint).note(call.where, f"HTTP {response.status} {response.reason or ''}".rstrip())
    return wait


def _abandon(call: _Call) -> None:
    known = health.known(call.endpoint)
    if known is not None:
        known.breaker.abandoned()


def _unreachable(call: _Call, error: Exception, never_connected: bool) -> ServerUnreachable:
    tries = f" after {call.failures} attempts" if call.failures > 1 else ""
    if never_connected:
        fix = "check that it runs and that its host and port are right"
    else:
        fix = "look at its log; the request was not repeated if it may have been executed"
    return ServerUnreachable(
        f"{call.method} {call.url} got no answer{tries} ({describe(error)})", where=call.where, fix=fix
    )


def _too_late(call: _Call) -> DeadlineExceeded:
    spent = time.monotonic() - call.started
    return DeadlineExceeded(
        f"{call.method} {call.url} was not answered within {spent:.1f} s",
        where=call.where,
        fix="allow more time (request_timeout_seconds or the caller's deadline) or find out why it is slow",
    )


__all__ = ["encode_json", "health", "send", "with_header"]
