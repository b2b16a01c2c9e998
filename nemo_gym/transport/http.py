"""The HTTP carrier: send a request with a deadline, retries and a circuit breaker.

A request is retried only if that is safe: the method is safe (GET), the caller passed `safe_to_retry`, the connection
was never established, or the server rejected the request with 429 or 503. If the connection is lost after the request
was sent, the server may have executed it.
"""

import asyncio
import errno
import logging
import math
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

from aiohttp import (
    ClientConnectionError,
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientHandlerType,
    ClientMiddlewareType,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    ServerFingerprintMismatch,
    TooManyRedirects,
)
from yarl import URL

from nemo_gym.config.secret_names import is_secret_name
from nemo_gym.config.secret_text import mask_text
from nemo_gym.errors import CircuitOpen, ConfigError, DeadlineExceeded, ServerUnreachable
from nemo_gym.keys import DEADLINE_HEADER, ROLLOUT_HEADER
from nemo_gym.transport import call_timing, deadlines, http_sessions, model_connections, run_token
from nemo_gym.transport.response_errors import name_failed_server
from nemo_gym.transport.retries import (
    OVERLOAD_STATUSES,
    SAFE_METHODS,
    SERVER_CALL,
    EndpointHealth,
    HealthRegistry,
    RetryPolicy,
    describe_error,
    next_pause,
    parse_retry_after,
)
from nemo_gym.wire.call_reply import REDIRECT_STATUSES, encode_json
from nemo_gym.wire.stored_rollout import RolloutId

logger = logging.getLogger("nemo_gym.transport")

health = HealthRegistry()
"""Health of the endpoints that failed since their last successful answer; one registry per process."""

RESTART_FACTOR = 10
"""Factor on `unreachable_timeout_seconds` for an endpoint that answered before, because it may be restarting."""

_RESENDABLE = (bytes, bytearray, str, dict, list, tuple)


@dataclass(slots=True)
class _HttpCall:
    """One request and the state of its attempts."""

    method: str
    url: str
    callee: str
    """Name of the called server in errors and logs."""
    policy: RetryPolicy
    is_safe_to_retry: bool
    """True if executing the request twice is harmless."""
    has_resendable_body: bool
    """False if the body is a stream, which can be sent only once."""
    options: dict[str, Any]
    expires_at: float
    endpoint: str
    """`host:port`"""
    address: URL
    is_simple: bool
    """True if `model_connections` can send the request; False if aiohttp must."""
    has_own_timeout: bool
    """True if the caller passed `timeout` in addition to the deadline."""
    max_bytes: int | None
    """Maximum size of the answer, given by callers that release the response; None: `max_body_bytes`."""
    rollout: RolloutId | None
    """The current rollout, if the address belongs to a run."""
    started_at: float
    failures: int = 0

    def seconds_left(self) -> float:
        return self.expires_at - time.monotonic()

    def varying_headers(self, left: float) -> dict[str, str]:
        """Return the headers that differ from call to call: the deadline, `left` seconds from now, and the rollout."""
        headers = {DEADLINE_HEADER: deadlines.format_seconds(deadlines.seconds_for_callee(left))}
        if self.rollout is not None:
            headers[ROLLOUT_HEADER] = call_timing.format_rollout(self.rollout)
        return headers

    def pause_before_retry(self, retry_after: float | None = None) -> float | None:
        """Return the seconds to wait before the next attempt; None if the retry policy allows no further attempt."""
        return next_pause(
            self.policy,
            failures=self.failures,
            spent=time.monotonic() - self.started_at,
            left=self.seconds_left(),
            uniform=random.uniform,
            retry_after=retry_after,
        )


async def send(
    method: str,
    url: str | URL,
    *,
    policy: RetryPolicy = SERVER_CALL,
    callee: str | None = None,
    safe_to_retry: bool = False,
    session: ClientSession | None = None,
    max_bytes: int | None = None,
    **options: Any,
) -> ClientResponse:
    """Send a request and return the response of any status. `options` are those of `ClientSession.request`.

    `callee` is the name of the server in errors and logs; the default is `host:port`. A caller that passes `max_bytes`,
    the maximum size of the answer, must call `release` of the response.

    Raises:
        ResponseTooLong: the answer is longer than `max_bytes`; or reading it raises this error.
        ServerUnreachable: no answer, and the retry budget is exhausted or a retry is not safe.
        CircuitOpen: the circuit breaker of the endpoint stays open for longer than the call may wait.
        DeadlineExceeded: the deadline passed; without a deadline, `request_timeout_seconds`.
        ConfigError: `url` is not an HTTP address.
    """
    call = _prepare(method, url, policy, callee, safe_to_retry, max_bytes, options)
    while True:
        if health.failing:  # at least one endpoint failed
            await _wait_for_circuit(call)
        try:
            if call.is_simple and session is None:
                response = await _attempt_with_pool(call)
            else:
                response = await _attempt_with_aiohttp(call, session or http_sessions.current_session())
        except (ClientConnectionError, ClientPayloadError) as error:
            await _pause_after_failure(call, error)
            continue
        except TimeoutError as error:
            _report_abandoned(call)
            raise _deadline_exceeded(call) from error
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                deadlines.note_awaited_server(call.callee)
            if isinstance(error, TooManyRedirects) and callee is not None:
                name_failed_server(error, callee, call.address.path)
            _report_abandoned(call)
            raise
        pause = _pause_after_response(call, response)
        if pause is None:
            return response
        response.release()
        await asyncio.sleep(pause)


def _prepare(
    method: str,
    url: str | URL,
    policy: RetryPolicy,
    callee: str | None,
    safe_to_retry: bool,
    max_bytes: int | None,
    options: dict[str, Any],
) -> _HttpCall:
    """Validate the arguments of `send`, encode the JSON body, add run token and rollout, compute when it expires."""
    method = method.upper()
    try:
        address, endpoint, key = _parse_address(url)
    except ValueError:
        raise ConfigError(
            f"{mask_text(str(url))!r} is not an HTTP address", where=callee, fix="http://<host>:<port>/<path>"
        ) from None
    _encode_json(options)
    token = run_token.token_for_key(key)
    if token is not None:
        options["headers"] = with_header(options.get("headers"), run_token.RUN_TOKEN_HEADER, token)
    timeout, seconds, allowance = options.get("timeout"), deadlines.seconds_left(), deadlines.current_allowance()
    if allowance is not None:
        seconds = deadlines.shorter_of(seconds, allowance.request_seconds)
    if timeout is not None:
        seconds = deadlines.shorter_of(seconds, _total_seconds(timeout))
    if seconds is None:
        seconds = http_sessions.settings().request_timeout_seconds
    body = options.get("data")
    now = time.monotonic()
    return _HttpCall(
        method=method,
        url=str(url),
        callee=callee or endpoint,
        policy=policy,
        is_safe_to_retry=safe_to_retry or method in SAFE_METHODS,
        has_resendable_body=body is None or isinstance(body, _RESENDABLE),
        options=options,
        expires_at=now + seconds,
        started_at=now,
        endpoint=endpoint,
        address=address,
        is_simple=model_connections.can_send(method, address, options),
        has_own_timeout=timeout is not None,
        max_bytes=max_bytes,
        rollout=None if token is None else call_timing.current_rollout(),
    )


@lru_cache(maxsize=1024)
def _parse_address(url: str | URL) -> tuple[URL, str, tuple[str, int]]:
    """Return the parsed URL, its `host:port` and its `address_key`.

    Raises:
        ValueError: `url` is not an HTTP address.
    """
    address = URL(url) if isinstance(url, str) else url
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError("not an HTTP address")
    return address, f"{address.host}:{address.port}", run_token.address_key(address.host, address.port or 0)


def _encode_json(options: dict[str, Any]) -> None:
    """Replace the option `json` by encoded `data`: encoded once for all attempts, and faster than by aiohttp."""
    body = options.pop("json", None)
    if body is None:
        return
    options["data"] = encode_json(body)
    options["headers"] = with_header(options.get("headers"), "Content-Type", "application/json")


def with_header(headers: Any, name: str, value: str) -> dict[str, str]:
    """Return `headers` with the header `name`, added to a copy unless it is already present."""
    if type(headers) is dict and name in headers:
        return headers
    copy = dict(headers or {})
    lowered = name.lower()
    if not any(key.lower() == lowered for key in copy):
        copy[name] = value
    return copy


def _total_seconds(timeout: Any) -> float | None:
    """Return the total seconds of the option `timeout`, which is a number or an aiohttp ClientTimeout."""
    if isinstance(timeout, ClientTimeout):
        return timeout.total
    return float(timeout) if isinstance(timeout, int | float) else None


async def _wait_for_circuit(call: _HttpCall) -> None:
    """Wait while the circuit breaker of the endpoint is open. Waiting does not count as an attempt.

    Raises:
        CircuitOpen: the breaker stays open for longer than the deadline or the retry budget allows, the policy allows
            one attempt only, or the endpoint has been unreachable for too long.
    """
    while (failing := health.get(call.endpoint)) is not None and (open_seconds := failing.breaker.admit()) > 0:
        spent = time.monotonic() - call.started_at
        unreachable_left = _unreachable_seconds_left(call, failing)
        exceeds_deadline = min(open_seconds, unreachable_left) >= call.seconds_left()
        exceeds_budget = spent + open_seconds > call.policy.budget_seconds
        if unreachable_left <= 0:
            raise CircuitOpen(
                f"{call.endpoint} has accepted no connection for {failing.unreachable_seconds():.0f} s",
                where=call.callee,
                fix="check that it runs and that its host and port are right (time limit: unreachable_timeout_seconds)",
            )
        if exceeds_deadline or exceeds_budget or call.policy.attempts == 1:
            raise CircuitOpen(
                f"{call.endpoint} does not answer and is not called for another {open_seconds:.1f} s",
                where=call.callee,
                fix="look at the log of that server; it may have stopped",
            )
        await asyncio.sleep(min(open_seconds * random.uniform(1.0, 1.25), unreachable_left))


def _unreachable_seconds_left(call: _HttpCall, failing: EndpointHealth) -> float:
    """Return the seconds until the unreachable timeout of the endpoint; infinite if the call has no such timeout."""
    if not call.policy.has_unreachable_timeout:
        return math.inf
    limit = http_sessions.settings().unreachable_timeout_seconds
    if call.endpoint in health.answered_before:
        limit *= RESTART_FACTOR
    return limit - failing.unreachable_seconds()


async def _attempt_with_pool(call: _HttpCall) -> ClientResponse:
    """Send the request once through the connection pool of `model_connections`; follow redirects with aiohttp."""
    left = call.seconds_left()
    if left <= 0:
        raise TimeoutError
    request = http_sessions.current_pool().request(
        call.method,
        call.address,
        call.options.get("headers") or {},
        call.options.get("data", b""),
        varying_headers=call.varying_headers(left),
        max_bytes=call.max_bytes,
    )
    if not call.has_own_timeout and deadlines.covering_alarm() is not None:
        response = await request
    else:
        async with asyncio.timeout(left):
            response = await request
    if response.status in REDIRECT_STATUSES and "Location" in response.headers:
        response.release()
        call.is_simple = False  # the request is sent again, because a server that redirects executes nothing
        return await _attempt_with_aiohttp(call, http_sessions.current_session())
    return cast("ClientResponse", response)


async def _attempt_with_aiohttp(call: _HttpCall, session: ClientSession) -> ClientResponse:
    """Send the request once through an aiohttp session, with the remaining time as timeout and deadline header."""
    left = call.seconds_left()
    if left <= 0:
        raise TimeoutError
    timeout = call.options.get("timeout")
    limits = timeout if isinstance(timeout, ClientTimeout) else ClientTimeout()
    connect = limits.sock_connect or http_sessions.settings().connect_timeout_seconds
    headers = call.options.get("headers")
    for name, value in call.varying_headers(left).items():
        headers = with_header(headers, name, value)
    options = {
        **call.options,
        "timeout": ClientTimeout(total=left, connect=limits.connect, sock_read=limits.sock_read, sock_connect=connect),
        "headers": headers,
    }
    if any(is_secret_name(name) for name in options["headers"]):
        options["middlewares"] = (_remove_run_headers, _remove_keys_from(call.address.origin()))
    return await session.request(call.method, call.url, **options)


def _remove_keys_from(origin: URL) -> ClientMiddlewareType:
    """Return a middleware that removes keys from a request that follows a redirect to another origin.

    aiohttp removes `Authorization` and cookies; other APIs have other headers, such as `x-api-key`.
    """

    async def remove_keys(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        if request.url.origin() != origin:
            for name in [name for name in request.headers if is_secret_name(name)]:
                if name.lower() != run_token.RUN_TOKEN_HEADER:  # which another server of the run may get
                    request.headers.popall(name, None)
        return await handler(request)

    return remove_keys


async def _remove_run_headers(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Remove run token and rollout from a request that follows a redirect to an address of no known run."""
    if run_token.token_for(request.url.host, request.url.port) is None:
        request.headers.popall(run_token.RUN_TOKEN_HEADER, None)
        request.headers.popall(ROLLOUT_HEADER, None)
    return await handler(request)


async def _pause_after_failure(call: _HttpCall, error: Exception) -> None:
    """Pause after an attempt without an answer; raise `ServerUnreachable` if the call must not be retried."""
    call.failures += 1
    never_connected = isinstance(error, ClientConnectorError | ConnectionTimeoutError)
    failing = health.entry(call.endpoint)
    failing.record_no_answer(call.callee, error, connected=not never_connected)
    if http_sessions.settings().global_aiohttp_client_request_debug:
        logger.warning("%s %s to %s, attempt %d", call.method, call.url, call.callee, call.failures, exc_info=error)
    is_permanent = isinstance(error, ClientConnectorCertificateError | ServerFingerprintMismatch)
    may_retry = call.has_resendable_body and not is_permanent and (call.is_safe_to_retry or never_connected)
    pause = call.pause_before_retry() if may_retry else None
    unreachable_left = _unreachable_seconds_left(call, failing)
    if pause is None or unreachable_left <= 0:
        raise _unreachable(call, error, never_connected) from error
    await asyncio.sleep(min(pause, unreachable_left))


def _pause_after_response(call: _HttpCall, response: ClientResponse) -> float | None:
    """Record the status of a response; return the seconds until the retry, or None to return this response."""
    if not isinstance(response.status, int) or response.status < 400:  # a mock in a test may have no status
        if health.failing:
            health.record_success(call.endpoint, call.callee)
        if call.policy.has_unreachable_timeout:  # the timeout is longer from now on, see `RESTART_FACTOR`
            health.answered_before.add(call.endpoint)
        return None
    failing = health.get(call.endpoint)
    if failing is not None:
        failing.record_answer()
    call.failures += 1
    retry_after = parse_retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
    is_harmless = call.is_safe_to_retry or response.status in OVERLOAD_STATUSES  # an overloaded server executed nothing
    if not (call.has_resendable_body and is_harmless):
        return None
    if not call.policy.retries_status(response.status, call.failures, retry_after):
        return None
    pause = call.pause_before_retry(retry_after)
    if pause is not None:
        health.entry(call.endpoint).log_failure(call.callee, f"HTTP {response.status} {response.reason or ''}".rstrip())
    return pause


def _report_abandoned(call: _HttpCall) -> None:
    """Report to the circuit breaker that the call ended without information about the endpoint."""
    failing = health.get(call.endpoint)
    if failing is not None:
        failing.breaker.report_abandoned()


def _unreachable(call: _HttpCall, error: Exception, never_connected: bool) -> ServerUnreachable:
    """Return the error for a call that got no answer."""
    attempts = f" after {call.failures} attempts" if call.failures > 1 else ""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        fix = "raise the open-file limit (ulimit -n), or run fewer rollouts at once"
    elif never_connected:
        fix = "check that it runs and that its host and port are right"
    else:
        fix = "look at its log; a request that may have been executed is not sent again"
    return ServerUnreachable(
        f"{call.method} {call.url} got no answer{attempts} ({describe_error(error)})", where=call.callee, fix=fix
    )


def _deadline_exceeded(call: _HttpCall) -> DeadlineExceeded:
    """Return the error for a call whose deadline passed."""
    spent = time.monotonic() - call.started_at
    return DeadlineExceeded(
        f"{call.method} {call.url} was not answered within {spent:.1f} s",
        where=call.callee,
        fix="allow more time (request_timeout_seconds or the caller's deadline) or find out why it is slow",
    )
