"""The HTTP carrier: one outgoing call with a deadline, retried only as long and as often as that is safe.

A request may be repeated when it cannot have had an effect: the method is safe, the caller says repeating is harmless
(`safe_to_repeat`), the connection was never made, or the server refused it before doing the work. If the connection
is lost after the request left, the other side may have executed it.
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
from nemo_gym.transport import deadlines, http_sessions, model_connections
from nemo_gym.transport.retries import (
    SAFE_METHODS,
    SERVER_CALL,
    EndpointHealth,
    HealthRegistry,
    RetryPolicy,
    describe_error,
    is_retryable_status,
    next_pause,
    parse_retry_after,
)
from nemo_gym.wire.call_reply import encode_json

logger = logging.getLogger("nemo_gym.transport")

health = HealthRegistry()
"""Endpoints that failed since their last answer, process-wide."""

RESTART_PATIENCE = 10
"""Factor by which an endpoint that has answered before, and may be restarting, is waited for longer."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REPLAYABLE = (bytes, bytearray, str, dict, list, tuple)


@dataclass(slots=True)
class _HttpCall:
    """One call and its attempts so far."""

    method: str
    url: str
    where: str
    policy: RetryPolicy
    is_repeatable: bool
    """The whole request can be sent twice without harm."""
    is_replayable: bool
    """The body can be sent twice at all; a stream cannot."""
    options: dict[str, Any]
    expires: float
    endpoint: str
    address: URL
    is_plain: bool
    """The request is simple enough for `model_connections`."""
    has_own_timeout: bool
    """The caller gave a timeout besides the deadline."""
    started: float = field(default_factory=time.monotonic)
    failures: int = 0

    def seconds_left(self) -> float:
        return self.expires - time.monotonic()

    def pause_before_repeat(self, retry_after: float | None = None) -> float | None:
        return next_pause(
            self.policy,
            failures=self.failures,
            spent=time.monotonic() - self.started,
            left=self.seconds_left(),
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
        CircuitOpen: the circuit breaker of the endpoint is open for longer than the call may wait.
        DeadlineExceeded: the deadline (or the default one) passed.
        ConfigError: `url` is not an HTTP address.
    """
    call = _prepare(method, url, policy, where, safe_to_repeat, options)
    while True:
        if len(health):  # some endpoint failed
            await _wait_for_circuit(call)
        try:
            if call.is_plain and session is None:
                response = await _plain_attempt(call)
            else:
                response = await _attempt(call, session or http_sessions.current_session())
        except (ClientConnectionError, ClientPayloadError) as error:
            await _after_no_answer(call, error)
            continue
        except TimeoutError as error:
            _abandon(call)
            raise _deadline_exceeded(call) from error
        except asyncio.CancelledError:
            deadlines.note_awaited_server(call.where)
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
) -> _HttpCall:
    method = method.upper()
    try:
        address, endpoint = _parse_address(url)
    except ValueError:
        raise ConfigError(
            f"{mask_text(str(url))!r} is not an HTTP address", where=where, fix="http://<host>:<port>/<path>"
        ) from None
    _encode_json(options)
    timeout, limit = options.get("timeout"), deadlines.seconds_left()
    if timeout is not None:
        limit = deadlines.shorter_of(limit, _total_seconds(timeout))
    if limit is None:
        limit = http_sessions.settings().request_timeout_seconds
    body = options.get("data")
    return _HttpCall(
        method=method,
        url=str(url),
        where=where or endpoint,
        policy=policy,
        is_repeatable=safe_to_repeat or method in SAFE_METHODS,
        is_replayable=body is None or isinstance(body, _REPLAYABLE),
        options=options,
        expires=time.monotonic() + limit,
        endpoint=endpoint,
        address=address,
        is_plain=model_connections.can_send(method, address, options),
        has_own_timeout=timeout is not None,
    )


@lru_cache(maxsize=1024)
def _parse_address(url: str | URL) -> tuple[URL, str]:
    """Parse an HTTP address; the result is the URL and its `host:port`.

    Raises:
        ValueError: `url` is not an HTTP address.
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
    """Return a copy of `headers` with `name: value`, unless they already contain `name`."""
    if type(headers) is dict and name in headers:
        return headers
    copy = dict(headers or {})
    lowered = name.lower()
    if not any(key.lower() == lowered for key in copy):
        copy[name] = value
    return copy


def _total_seconds(timeout: Any) -> float | None:
    """Return the caller's own limit, given as a number of seconds or an aiohttp ClientTimeout."""
    if isinstance(timeout, ClientTimeout):
        return timeout.total
    return float(timeout) if isinstance(timeout, int | float) else None


async def _wait_for_circuit(call: _HttpCall) -> None:
    """Wait while the circuit breaker of the endpoint is open, if that fits into the call's budget.

    Waiting costs time but no attempt: nothing was sent.
    """
    while (failing := health.get(call.endpoint)) is not None and (rest := failing.breaker.admit()) > 0:
        spent = time.monotonic() - call.started
        patience = _patience(call, failing)
        too_long = min(rest, patience) >= call.seconds_left() or spent + rest > call.policy.budget_seconds
        if patience <= 0:
            raise CircuitOpen(
                f"{call.endpoint} has accepted no connection for {failing.unreachable_seconds():.0f} s",
                where=call.where,
                fix="check that it runs and that its host and port are right (unreachable_timeout_seconds: the wait)",
            )
        if too_long or call.policy.attempts == 1:
            raise CircuitOpen(
                f"{call.endpoint} does not answer and is not called for another {rest:.1f} s",
                where=call.where,
                fix="look at the log of that server; it may have stopped",
            )
        await asyncio.sleep(min(rest * random.uniform(1.0, 1.25), patience))


def _patience(call: _HttpCall, failing: EndpointHealth) -> float:
    """Return how much longer calls wait for an endpoint that accepts no connection."""
    if not call.policy.gives_up_unreachable:
        return math.inf
    limit = http_sessions.settings().unreachable_timeout_seconds
    if call.endpoint in health.reached:
        limit *= RESTART_PATIENCE
    return limit - failing.unreachable_seconds()


async def _plain_attempt(call: _HttpCall) -> ClientResponse:
    left = call.seconds_left()
    if left <= 0:
        raise TimeoutError
    work = http_sessions.current_pool().request(
        call.method,
        call.address,
        call.options.get("headers") or {},
        call.options.get("data", b""),
        varying_header=(DEADLINE_HEADER, _deadline_header(left)),
    )
    if not call.has_own_timeout and deadlines.covering_alarm() is not None:
        response = await work
    else:
        async with asyncio.timeout(left):
            response = await work
    if response.status in REDIRECTS:
        call.is_plain = False  # nothing was executed; aiohttp follows redirects
        return await _attempt(call, http_sessions.current_session())
    return cast("ClientResponse", response)


async def _attempt(call: _HttpCall, session: ClientSession) -> ClientResponse:
    left = call.seconds_left()
    if left <= 0:
        raise TimeoutError
    timeout = call.options.get("timeout")
    limits = timeout if isinstance(timeout, ClientTimeout) else ClientTimeout()
    connect = limits.sock_connect or http_sessions.settings().connect_timeout_seconds
    options = {
        **call.options,
        "timeout": ClientTimeout(total=left, connect=limits.connect, sock_read=limits.sock_read, sock_connect=connect),
        "headers": with_header(call.options.get("headers"), DEADLINE_HEADER, _deadline_header(left)),
    }
    return await session.request(call.method, call.url, **options)


def _deadline_header(left: float) -> str:
    return deadlines.format_seconds(deadlines.seconds_for_callee(left))


async def _after_no_answer(call: _HttpCall, error: Exception) -> None:
    """Pause before the next attempt, or raise if the call must not be retried."""
    call.failures += 1
    never_connected = isinstance(error, ClientConnectorError | ConnectionTimeoutError)
    failing = health.entry(call.endpoint)
    failing.record_no_answer(call.where, error, connected=not never_connected)
    if http_sessions.settings().global_aiohttp_client_request_debug:
        logger.warning("%s %s to %s, attempt %d", call.method, call.url, call.where, call.failures, exc_info=error)
    is_final = isinstance(error, ClientConnectorCertificateError | ServerFingerprintMismatch)
    may_repeat = call.is_replayable and not is_final and (call.is_repeatable or never_connected)
    wait = call.pause_before_repeat() if may_repeat else None
    patience = _patience(call, failing)
    if wait is None or patience <= 0:
        raise _unreachable(call, error, never_connected) from error
    await asyncio.sleep(min(wait, patience))


def _wait_before_repeating(call: _HttpCall, response: ClientResponse) -> float | None:
    """Return the seconds until the request is retried because of its status, or None to keep the answer."""
    if not isinstance(response.status, int) or response.status < 400:  # a stand-in in a test may have no status
        if len(health):
            health.record_success(call.endpoint, call.where)
        if call.policy.gives_up_unreachable:
            health.reached.add(call.endpoint)
        return None
    failing = health.get(call.endpoint)
    if failing is not None:
        failing.record_answer()
    call.failures += 1
    retry_after = parse_retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
    if not call.is_replayable or not is_retryable_status(call.policy, response.status, call.failures, retry_after):
        return None
    if response.status not in (429, 503) and not call.is_repeatable:
        return None
    wait = call.pause_before_repeat(retry_after)
    if wait is not None:
        health.entry(call.endpoint).log_failure(call.where, f"HTTP {response.status} {response.reason or ''}".rstrip())
    return wait


def _abandon(call: _HttpCall) -> None:
    failing = health.get(call.endpoint)
    if failing is not None:
        failing.breaker.report_abandoned()


def _unreachable(call: _HttpCall, error: Exception, never_connected: bool) -> ServerUnreachable:
    tries = f" after {call.failures} attempts" if call.failures > 1 else ""
    if never_connected:
        fix = "check that it runs and that its host and port are right"
    else:
        fix = "look at its log; a request that may have been executed is not sent again"
    return ServerUnreachable(
        f"{call.method} {call.url} got no answer{tries} ({describe_error(error)})", where=call.where, fix=fix
    )


def _deadline_exceeded(call: _HttpCall) -> DeadlineExceeded:
    spent = time.monotonic() - call.started
    return DeadlineExceeded(
        f"{call.method} {call.url} was not answered within {spent:.1f} s",
        where=call.where,
        fix="allow more time (request_timeout_seconds or the caller's deadline) or find out why it is slow",
    )
