"""How many calls an endpoint gets at once, learnt from its refusals.

An endpoint that says 429 or 503 gets half as many calls from then on, none before its `Retry-After` has passed, and
one more at a time for each round of answers without a refusal. An endpoint that refuses everything for a while, as one
that restarts does, comes back quickly: up to what it took before it went away, every answer brings another call. What
the configuration allows is never exceeded.
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

from aiohttp import ClientResponse, ClientResponseError
from pydantic import BaseModel, Field, ValidationError

from nemo_gym.errors import DeadlineExceeded, GymError, ModelFailed
from nemo_gym.net import deadline, sessions
from nemo_gym.net.client import send, with_header
from nemo_gym.net.openai import NeMoGymAsyncOpenAI
from nemo_gym.net.places import SharedPlaces, claimed
from nemo_gym.net.retry import MODEL_CALL, next_pause, parse_retry_after

Answer = TypeVar("Answer", bound=BaseModel)

OVERLOADED = frozenset({429, 503})
"""Answers that say "not so many at once"."""

LONGEST_REST = 60.0
"""Seconds. One answer's `Retry-After` keeps the other calls waiting no longer than this; they ask for themselves."""

_WITHOUT_OVERLOAD = replace(MODEL_CALL, statuses=MODEL_CALL.statuses - OVERLOADED, asked_to_wait=frozenset())


class AdaptiveLimit:
    """Places for calls to one endpoint, first come first served; `most` at once, or any number.

    Refusals of calls that were sent before the last cut do not cut again: one wave of them is one message. Belongs
    to one event loop at a time. With `shared`, other processes' calls count too, and all rest together.
    """

    def __init__(
        self,
        most: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        shared: SharedPlaces | None = None,
    ) -> None:
        self._shared = shared
        self._most = math.inf if most is None else float(most)
        self._allowed = self._most
        self._took = self._most  # what half of the calls were when it last answered some and refused others
        self._answered = True
        self._clock = clock
        self._in_flight = 0
        self._cuts = 0
        self._rest_ends = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def allowed(self) -> float:
        """Calls that may be under way at once; infinite when nobody ever set a limit."""
        return self._allowed

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def enter_at_once(self) -> int | None:
        """What `enter` does when there is nothing to wait for; None when there is."""
        if self._in_flight >= self._allowed or self._waiting or self._rest_ends:
            return None
        if self._shared and (self._shared.rest_ends > self._clock() or not self._shared.take_at_once()):
            return None
        self._in_flight += 1
        return self._cuts

    async def enter(self) -> int:
        """Wait for a place and for the end of a rest. The number returned is for `refused`; end with `leave`."""
        if self._in_flight < self._allowed and not self._waiting:
            self._in_flight += 1
        else:
            await self._queue()
        if self._shared:
            try:
                await self._shared.take()
            except asyncio.CancelledError:
                self._leave()
                raise
        if self._rest_ends or self._shared:
            await self._rest()
        return self._cuts

    def leave(self) -> None:
        """Give the place back."""
        if self._shared:
            self._shared.give()
        self._leave()

    def _leave(self) -> None:
        self._in_flight -= 1
        while self._waiting and self._in_flight < self._allowed:
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1
                turn.set_result(None)

    def succeeded(self) -> None:
        """An answer without refusal: one more place, or beyond what it once took, one after a round of answers."""
        self._answered = True
        if self._allowed < self._most:
            step = 1.0 if self._allowed < self._took else 1.0 / self._allowed
            self._allowed = min(self._most, self._allowed + step)

    def refused(self, entered: int, retry_after: float | None = None) -> None:
        """The call that entered as `entered` was one too many."""
        if entered == self._cuts:
            self._cuts += 1
            self._allowed = max(1.0, min(self._allowed, float(self._in_flight)) / 2)
            if self._answered:
                self._took = self._allowed
            self._answered = False
        if retry_after:
            self._rest_ends = max(self._rest_ends, self._clock() + min(retry_after, LONGEST_REST))
            if self._shared:
                self._shared.rest_until(self._rest_ends)

    async def _queue(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the place came at the same moment
                self._leave()
            raise

    async def _rest(self) -> None:
        try:
            while (left := self._resting_until() - self._clock()) > 0:  # noqa: ASYNC110 - a rest has an end, not an event
                await asyncio.sleep(left * random.uniform(1.0, 1.1))  # not all at the same instant
        except asyncio.CancelledError:
            self.leave()
            raise
        self._rest_ends = 0.0

    def _resting_until(self) -> float:
        return max(self._rest_ends, self._shared.rest_ends) if self._shared else self._rest_ends


class PacedOpenAI(NeMoGymAsyncOpenAI):
    """The OpenAI client of a model server: paced by an `AdaptiveLimit`, its failures attributed to the server.

    A refusal that is not worth waiting for any longer is raised as it came, with its status and body.
    """

    name: str
    """The instance whose failures these are."""
    max_concurrent_requests: int | None = None
    default_query: dict[str, str] = Field(default_factory=dict)
    """Sent in the address of every call."""
    key_header: Literal["authorization", "api-key"] = "authorization"

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        _ = self.limit  # now: places are claimed in the order in which clients are made

    @cached_property  # a plain attribute once it is there; pydantic's private ones are looked up slowly
    def limit(self) -> AdaptiveLimit:
        shared = claimed(self.name) if self.max_concurrent_requests else None
        return AdaptiveLimit(self.max_concurrent_requests, shared=shared)

    @cached_property
    def _headers(self) -> dict[str, str]:
        key = {"authorization": f"Bearer {self.api_key}", "api-key": str(self.api_key)}[self.key_header]
        return {self.key_header: key, **self.default_headers}

    @cached_property
    def _json_headers(self) -> dict[str, str]:
        return with_header(self._headers, "Content-Type", "application/json")

    async def _call(self, method: str, path: str, *, root: str | None = None, **options: Any) -> dict[str, Any]:
        refusals, first_refused = 0, 0.0
        while True:
            entered = self.limit.enter_at_once()
            if entered is None:
                entered = await self._enter()
            try:
                answer = await super()._call(method, path, root=root, **options)
                self.limit.succeeded()
                return answer
            except ClientResponseError as refusal:
                if refusal.status not in OVERLOADED:
                    raise
                retry_after = _retry_after(refusal)
                self.limit.refused(entered, retry_after)
                refusals, first_refused = refusals + 1, first_refused or time.monotonic()
                wait = _pause(refusals, first_refused, retry_after)
                if wait is None:
                    raise
            except GymError as failure:
                raise self._attributed(failure) from failure.__cause__
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
        """A place, when there is none at once."""
        limit = deadline.sooner(deadline.remaining(), sessions.settings().request_timeout_seconds)
        try:
            async with asyncio.timeout(limit):
                return await self.limit.enter()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"no place for another call to {self.base_url} came free in time "
                f"({self.limit.in_flight} under way, {self.limit.allowed:.0f} allowed)",
                where=self.name,
                fix="run fewer rollouts at once, or raise max_concurrent_requests if the endpoint can take it",
            ) from error

    def _attributed(self, failure: GymError) -> GymError:
        """The failure with this server's name on it; the address it had there goes into its words."""
        if failure.where != self.name:
            if failure.where:
                failure.problem = f"{failure.where}: {failure.problem}"
            failure.where = self.name
        return failure


def _retry_after(refusal: ClientResponseError) -> float | None:
    said = refusal.headers.get("Retry-After") if refusal.headers else None
    return parse_retry_after(said, datetime.now(UTC))


def _pause(refusals: int, first_refused: float, retry_after: float | None) -> float | None:
    return next_pause(
        MODEL_CALL,
        failures=refusals,
        spent=time.monotonic() - first_refused,
        left=deadline.sooner(deadline.remaining(), sessions.settings().request_timeout_seconds),
        uniform=random.uniform,
        retry_after=retry_after,
    )


def understood(kind: type[Answer], answer: dict[str, Any], *, where: str) -> Answer:
    """An endpoint's answer as what it should be.

    Raises:
        ModelFailed: it is something else; `where` names the server whose endpoint it is.
    """
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ModelFailed(
            f"the endpoint's answer is no {kind.__name__.removeprefix('NeMoGym')}: {place}: {first['msg']}",
            where=where,
            fix="check the endpoint's address in the configuration: does it speak this API?",
        ) from error
