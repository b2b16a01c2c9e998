"""The client of model servers for OpenAI-compatible endpoints, and its adaptive limit of concurrent calls.

Calls to a model keep no state on the other side, so they may be repeated after a lost connection. Rate limits and
gateway errors are waited out within the budget of `MODEL_CALL`; a plain 500 gets three attempts, because it is often
final. An endpoint that answers 429 or 503 gets half as many concurrent calls from then on, none before its
`Retry-After` has passed, and one more for each round of answers without a refusal.
"""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, TypeVar

from aiohttp import ClientPayloadError, ClientResponse, ClientResponseError
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json

from nemo_gym.config.secrets import Secret
from nemo_gym.errors import DeadlineExceeded, GymError, ModelFailed, ServerUnreachable
from nemo_gym.transport import deadlines, http_sessions
from nemo_gym.transport.client_response import is_ok, raise_for_status, read_body
from nemo_gym.transport.http import send, with_header
from nemo_gym.transport.retries import MODEL_CALL, describe_error, next_pause, parse_retry_after
from nemo_gym.transport.shared_semaphore import SharedSemaphore, claim_semaphore

Answer = TypeVar("Answer", bound=BaseModel)

RATE_LIMIT_ERROR_CODES = sorted(MODEL_CALL.statuses)
RETRY_ERROR_CODES = [*RATE_LIMIT_ERROR_CODES, *sorted(MODEL_CALL.few_attempts_statuses)]

TRUNCATED_BODY_ATTEMPTS = 3
"""Attempts at a request whose answer breaks off in the middle."""

OVERLOAD_STATUSES = frozenset({429, 503})

LONGEST_REST = 60.0
"""Seconds. The `Retry-After` of one answer holds up the other calls no longer than this."""

_WITHOUT_OVERLOAD = replace(
    MODEL_CALL, statuses=MODEL_CALL.statuses - OVERLOAD_STATUSES, retry_after_statuses=frozenset()
)


class NeMoGymAsyncOpenAI(BaseModel):
    """`await client.create_response(model=…, input=…)`: keyword arguments are the JSON body, the result is a dict."""

    base_url: str
    api_key: Secret = Field(repr=False)
    internal: bool = False
    """The endpoint is one of our servers; kept for callers that set it, both kinds are called alike."""
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False)

    async def create_models(self, **kwargs: Any) -> dict[str, Any]:
        """`GET /models`; keyword arguments become query parameters."""
        return await self._call("GET", "models", params=kwargs or None)

    async def create_chat_completion(self, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", "chat/completions", json=kwargs)

    async def create_completion(self, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", "completions", json=kwargs)

    async def create_response(self, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", "responses", json=kwargs)

    async def create_tokenize(self, **kwargs: Any) -> dict[str, Any]:
        """Call vLLM's `/tokenize`, which is beside `/v1`, not below it."""
        root = self.base_url.rstrip("/").removesuffix("/v1")
        return await self._call("POST", "tokenize", root=root, json=kwargs)

    async def _call(self, method: str, path: str, *, root: str | None = None, **options: Any) -> dict[str, Any]:
        url = f"{(root or self.base_url).rstrip('/')}/{path}"
        for attempt in range(1, TRUNCATED_BODY_ATTEMPTS + 1):
            response = await self._request(method=method, url=url, **options)
            try:
                if not is_ok(response):
                    await raise_for_status(response)
                return _parse_object(await read_body(response), url)
            except ClientPayloadError as error:
                if attempt == TRUNCATED_BODY_ATTEMPTS:
                    raise ServerUnreachable(f"the answer broke off ({describe_error(error)})", where=url) from error
                await asyncio.sleep(0)
        raise AssertionError("unreachable")  # pragma: no cover - the loop returns or raises

    async def _request(self, **options: Any) -> ClientResponse:
        """Send one request with the retries of a model call; subclasses that add headers override this."""
        headers = {"Authorization": f"Bearer {self.api_key}", **self.default_headers, **(options.pop("headers", {}))}
        return await send(policy=MODEL_CALL, safe_to_repeat=True, headers=headers, **options)


def _parse_object(body: bytes, url: str) -> dict[str, Any]:
    """Parse a model's answer. NaN is accepted: it does occur among log probabilities."""
    try:
        answer = from_json(body, allow_inf_nan=True)
    except ValueError as error:
        start = body[:200].decode("utf-8", errors="replace")
        raise ModelFailed(f"the answer is not JSON: {start!r}", where=url) from error
    if not isinstance(answer, dict):
        raise ModelFailed(f"the answer is JSON but not an object: {type(answer).__name__}", where=url)
    return answer


class AdaptiveLimit:
    """Slots for concurrent calls to one endpoint, first come first served; at most `most`, or any number.

    Refusals of calls that were sent before the last cut do not cut again: one wave of refusals is one signal. An
    endpoint that refuses everything for a while, as a restarting one does, recovers quickly: up to the limit before
    it stopped, every answer adds a slot. Belongs to one event loop at a time. With `shared`, the calls of other
    processes count too, and all rest together.
    """

    def __init__(
        self,
        most: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        shared: SharedSemaphore | None = None,
    ) -> None:
        self._shared = shared
        self._most = math.inf if most is None else float(most)
        self._current = self._most
        self._proven = self._most  # half of the calls in flight when the endpoint last refused some and answered others
        self._had_answer = True
        self._clock = clock
        self._in_flight = 0
        self._cuts = 0
        self._rest_ends = 0.0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def current(self) -> float:
        """Calls that may be in flight at once; infinite without a limit."""
        return self._current

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def try_enter(self) -> int | None:
        """Enter without waiting and return the number for `record_refusal`; None if there is no free slot."""
        if self._in_flight >= self._current or self._queue or self._rest_ends:
            return None
        if self._shared and (self._shared.rest_ends > self._clock() or not self._shared.try_acquire()):
            return None
        self._in_flight += 1
        return self._cuts

    async def enter(self) -> int:
        """Wait for a slot and for the end of a rest. The number returned is for `record_refusal`; end with `leave`."""
        if self._in_flight < self._current and not self._queue:
            self._in_flight += 1
        else:
            await self._wait_for_slot()
        if self._shared:
            try:
                await self._shared.acquire()
            except asyncio.CancelledError:
                self._leave()
                raise
        if self._rest_ends or self._shared:
            await self._rest()
        return self._cuts

    def leave(self) -> None:
        """Release the slot."""
        if self._shared:
            self._shared.release()
        self._leave()

    def _leave(self) -> None:
        self._in_flight -= 1
        while self._queue and self._in_flight < self._current:
            slot = self._queue.popleft()
            if not slot.done():
                self._in_flight += 1
                slot.set_result(None)

    def record_success(self) -> None:
        """Add a slot after an answer; above the proven limit, one after a whole round of answers."""
        self._had_answer = True
        if self._current < self._most:
            step = 1.0 if self._current < self._proven else 1.0 / self._current
            self._current = min(self._most, self._current + step)

    def record_refusal(self, entered: int, retry_after: float | None = None) -> None:
        """Halve the limit because the call that entered as `entered` was refused."""
        if entered == self._cuts:
            self._cuts += 1
            self._current = max(1.0, min(self._current, float(self._in_flight)) / 2)
            if self._had_answer:
                self._proven = self._current
            self._had_answer = False
        if retry_after:
            self._rest_ends = max(self._rest_ends, self._clock() + min(retry_after, LONGEST_REST))
            if self._shared:
                self._shared.rest_until(self._rest_ends)

    async def _wait_for_slot(self) -> None:
        slot = asyncio.get_running_loop().create_future()
        self._queue.append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():  # granted at the same moment
                self._leave()
            raise

    async def _rest(self) -> None:
        try:
            while (left := self._latest_rest_end() - self._clock()) > 0:  # noqa: ASYNC110 - a rest has an end, not an event
                await asyncio.sleep(left * random.uniform(1.0, 1.1))  # not all at the same instant
        except asyncio.CancelledError:
            self.leave()
            raise
        self._rest_ends = 0.0

    def _latest_rest_end(self) -> float:
        return max(self._rest_ends, self._shared.rest_ends) if self._shared else self._rest_ends


class PacedOpenAI(NeMoGymAsyncOpenAI):
    """The OpenAI client of a model server: paced by an `AdaptiveLimit`, its failures attributed to the server.

    A refusal that cannot be waited out any longer is raised as it came, with its status and body.
    """

    name: str
    """Instance name to attribute failures to."""
    max_concurrent_requests: int | None = None
    default_query: dict[str, str] = Field(default_factory=dict)
    """Query parameters of every call."""
    key_header: Literal["authorization", "api-key"] = "authorization"

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        _ = self.limit  # now: semaphores are claimed in the order in which clients are made

    @cached_property  # a normal attribute after the first use; pydantic's private attributes are slow
    def limit(self) -> AdaptiveLimit:
        shared = claim_semaphore(self.name) if self.max_concurrent_requests else None
        return AdaptiveLimit(self.max_concurrent_requests, shared=shared)

    @cached_property
    def _headers(self) -> dict[str, str]:
        key = {"authorization": f"Bearer {self.api_key}", "api-key": str(self.api_key)}[self.key_header]
        return {self.key_header: key, **self.default_headers}

    @cached_property
    def _json_headers(self) -> dict[str, str]:
        return with_header(self._headers, "Content-Type", "application/json")

    async def _call(self, method: str, path: str, *, root: str | None = None, **options: Any) -> dict[str, Any]:
        refusals, first_refusal_at = 0, 0.0
        while True:
            entered = self.limit.try_enter()
            if entered is None:
                entered = await self._enter()
            try:
                answer = await super()._call(method, path, root=root, **options)
                self.limit.record_success()
                return answer
            except ClientResponseError as refusal:
                if refusal.status not in OVERLOAD_STATUSES:
                    raise
                retry_after = _retry_after(refusal)
                self.limit.record_refusal(entered, retry_after)
                refusals, first_refusal_at = refusals + 1, first_refusal_at or time.monotonic()
                wait = _pause_after_refusal(refusals, first_refusal_at, retry_after)
                if wait is None:
                    raise
            except GymError as failure:
                raise self._attribute(failure) from failure.__cause__
            finally:
                self.limit.leave()
            await asyncio.sleep(wait)

    async def _request(self, **options: Any) -> ClientResponse:
        headers = self._json_headers if "json" in options else self._headers
        if "headers" in options:
            headers = {**headers, **options.pop("headers")}
        if self.default_query:
            options["params"] = {**self.default_query, **(options.get("params") or {})}
        return await send(policy=_WITHOUT_OVERLOAD, where=self.name, safe_to_repeat=True, headers=headers, **options)

    async def _enter(self) -> int:
        """Wait for a slot within the deadline."""
        try:
            async with asyncio.timeout(_seconds_left()):
                return await self.limit.enter()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"no slot for another call to {self.base_url} became free in time "
                f"({self.limit.in_flight} in flight, {self.limit.current:.0f} allowed)",
                where=self.name,
                fix="run fewer rollouts at once, or raise max_concurrent_requests if the endpoint can take it",
            ) from error

    def _attribute(self, failure: GymError) -> GymError:
        """Put this server's name on a failure; the address it had there goes into its text."""
        if failure.where != self.name:
            if failure.where:
                failure.problem = f"{failure.where}: {failure.problem}"
            failure.where = self.name
        return failure


def _seconds_left() -> float | None:
    return deadlines.shorter_of(deadlines.seconds_left(), http_sessions.settings().request_timeout_seconds)


def _retry_after(refusal: ClientResponseError) -> float | None:
    value = refusal.headers.get("Retry-After") if refusal.headers else None
    return parse_retry_after(value, datetime.now(UTC))


def _pause_after_refusal(refusals: int, first_refusal_at: float, retry_after: float | None) -> float | None:
    return next_pause(
        MODEL_CALL,
        failures=refusals,
        spent=time.monotonic() - first_refusal_at,
        left=_seconds_left(),
        uniform=random.uniform,
        retry_after=retry_after,
    )


def validate_answer(kind: type[Answer], answer: dict[str, Any], *, where: str) -> Answer:
    """Validate an endpoint's answer as a `kind`.

    Raises:
        ModelFailed: the answer has another shape; `where` names the server whose endpoint it is.
    """
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, first["loc"]))
        raise ModelFailed(
            f"the endpoint's answer is no {kind.__name__.removeprefix('NeMoGym')}: {location}: {first['msg']}",
            where=where,
            fix="check the endpoint's address in the configuration: does it speak this API?",
        ) from error
