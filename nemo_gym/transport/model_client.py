"""Client of model servers for OpenAI-compatible endpoints, with an adaptive concurrency limit.

Model calls are stateless, so they are retried after a lost connection. Rate limits and gateway errors are retried
within the budget of `MODEL_CALL`; status 500 gets three attempts, because it is often permanent. When an endpoint
answers 429 or 503 (a rejection), the concurrency limit is halved and calls pause for the `Retry-After` time; later
successful answers raise the limit again.
"""

import asyncio
import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from http import HTTPStatus
from typing import Any, Literal, TypeVar, cast
from urllib.parse import urlsplit

from aiohttp import ClientPayloadError, ClientResponse, ClientResponseError, TooManyRedirects
from pydantic import BaseModel, Field, PrivateAttr, ValidationError
from pydantic_core import from_json

from nemo_gym.config.secret_text import mask_text
from nemo_gym.config.secrets import Secret
from nemo_gym.convert.answer_repair import validate_or_repair
from nemo_gym.convert.json_access import new_id
from nemo_gym.errors import DeadlineExceeded, GymError, ModelAnswerTooLarge, ModelFailed, ServerUnreachable
from nemo_gym.transport import deadlines, http_sessions
from nemo_gym.transport.adaptive_limit import AdaptiveLimit
from nemo_gym.transport.client_response import LocalResponse, is_ok, raise_for_status, read_body
from nemo_gym.transport.endpoint_waits import reporting_wait, retry_reason, slot_reason
from nemo_gym.transport.event_reader import OnEvent, ReadAnswer, event_reader, is_after_events, raise_error_answer
from nemo_gym.transport.http import send, with_header
from nemo_gym.transport.large_bodies import (
    COMPRESSED_STARTS,
    LARGE_BYTES,
    ResponseTooLong,
    check_parsed_size,
    current_memory,
    decompress_layers,
    limits,
)
from nemo_gym.transport.rejection_notice import RejectionNotice
from nemo_gym.transport.response_errors import is_quota_used_up
from nemo_gym.transport.retries import MODEL_CALL, OVERLOAD_STATUSES, describe_error, next_pause, parse_retry_after
from nemo_gym.transport.shared_semaphore import claim_semaphore
from nemo_gym.wire.call_reply import replace_surrogates

AnswerT = TypeVar("AnswerT", bound=BaseModel)

RATE_LIMIT_ERROR_CODES = sorted(MODEL_CALL.statuses - {529})  # 529 is of Anthropic alone; the list is public
RETRY_ERROR_CODES = [*RATE_LIMIT_ERROR_CODES, *sorted(MODEL_CALL.few_attempts_statuses)]
MAX_NUM_TRIES = MODEL_CALL.few_attempts  # what model servers written for NeMo Gym pass as `max_http_attempts`

TRUNCATED_BODY_ATTEMPTS = 3
"""Maximum attempts when the connection is lost in the middle of an answer."""

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")

_MODEL_CALL_WITHOUT_OVERLOAD = replace(
    MODEL_CALL, statuses=MODEL_CALL.statuses - OVERLOAD_STATUSES, retry_after_statuses=frozenset()
)


class NeMoGymAsyncOpenAI(BaseModel):
    """OpenAI client: `await client.create_response(model=…)` sends its arguments as JSON and returns a dict."""

    base_url: str
    api_key: Secret = Field(repr=False)
    internal: bool = False
    """Has no effect; accepted because existing callers set it."""
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_http_attempts: int | None = Field(default=None, ge=1)
    """Maximum requests per call; by default the rules of `MODEL_CALL`."""
    max_connection_retries: int | None = Field(default=None, ge=0)
    """Maximum further requests after a lost connection, if `max_http_attempts` is not set."""

    async def create_models(self, **kwargs: Any) -> dict[str, Any]:
        """Call `GET /models`; keyword arguments are the query parameters."""
        return await self._call("GET", "models", params=kwargs or None)

    async def create_chat_completion(self, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", "chat/completions", json=kwargs)

    async def create_completion(self, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", "completions", json=kwargs)

    async def create_response(self, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", "responses", json=kwargs)

    async def create_tokenize(self, **kwargs: Any) -> dict[str, Any]:
        """Call `/tokenize` of vLLM, whose path does not begin with `/v1`."""
        return await self._call("POST", "tokenize", root=self._root, json=kwargs)

    async def create_render(self, **kwargs: Any) -> dict[str, Any]:
        """Render a chat request of vLLM to the token ids and sampling parameters of its prompt."""
        return await self._call("POST", "chat/completions/render", json=kwargs)

    async def create_generation(self, **kwargs: Any) -> dict[str, Any]:
        """Generate from token ids with vLLM, whose path does not begin with `/v1`."""
        return await self._call("POST", "inference/v1/generate", root=self._root, json=kwargs)

    async def create_derender(self, **kwargs: Any) -> dict[str, Any]:
        """Decode and parse generated token ids with vLLM."""
        return await self._call("POST", "chat/completions/derender", json=kwargs)

    @property
    def _root(self) -> str:
        return self.base_url.rstrip("/").removesuffix("/v1")

    async def stream(self, path: str, body: dict[str, Any], on_event: OnEvent) -> dict[str, Any]:
        """Send a request and report the events of its answer; return an empty object, or an answer without events."""
        session = http_sessions.current_session()  # the connection pool returns complete answers only
        return await self._call("POST", path, json=body, session=session, read=event_reader(on_event, _read_object))

    async def _call(
        self, method: str, path: str, *, root: str | None = None, read: ReadAnswer | None = None, **options: Any
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of the answer; retry if the answer is truncated."""
        url = f"{(root or self.base_url).rstrip('/')}/{path}"
        for attempt in range(1, TRUNCATED_BODY_ATTEMPTS + 1):
            try:
                response = await self._request(method=method, url=url, **options)
                if response.status >= HTTPStatus.MULTIPLE_CHOICES or isinstance(response, ClientResponse):
                    _check_not_redirected(response, method)
                return await (read or _read_object)(response, url)
            except TooManyRedirects as error:
                raise _redirect_error(error.history[0]) from None
            except ResponseTooLong as error:
                raise ModelAnswerTooLarge(
                    error.problem, where=url, fix="raise max_model_answer_bytes if such answers are intended"
                ) from None
            except ClientPayloadError as error:
                if attempt == TRUNCATED_BODY_ATTEMPTS:
                    raise ServerUnreachable(f"the answer broke off ({describe_error(error)})", where=url) from error
                await asyncio.sleep(0)  # lets other calls run before the retry
        raise AssertionError("unreachable")  # pragma: no cover - the loop returns or raises

    async def _request(self, **options: Any) -> ClientResponse:
        """Send one request with the retries of `MODEL_CALL`. Subclasses override this to add headers."""
        headers = {**self._key_headers("Authorization"), **self.default_headers, **(options.pop("headers", {}))}
        policy = MODEL_CALL.with_attempts(self.max_http_attempts)
        if self.max_http_attempts is None and self.max_connection_retries is not None:
            policy = replace(policy, attempts=self.max_connection_retries + 1)
        return await send(policy=policy, safe_to_retry=True, headers=headers, max_bytes=limits.answer, **options)

    def _key_headers(self, name: str) -> dict[str, str]:
        """Return the header with the API key; none if the key is empty and the URL contains a user.

        aiohttp sends the user and password of a URL itself, and rejects a second `Authorization`.
        """
        if not self.api_key and "@" in urlsplit(self.base_url).netloc:
            return {}
        return {name: f"Bearer {self.api_key}" if name.lower() == "authorization" else str(self.api_key)}


def _check_not_redirected(response: ClientResponse | LocalResponse, method: str) -> None:
    """Raise the error of a redirect that leads to a page, for example to log in, which cannot answer a model call.

    A redirect with status 307 or 308 repeats the call elsewhere and is followed. Others turn it into a GET.
    """
    if HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST:
        raise _redirect_error(response)
    if response.history and response.method != method:
        response.release()
        raise _redirect_error(response.history[0])


def _redirect_error(response: ClientResponse | LocalResponse) -> ClientResponseError:
    """Return the error for a redirect. It does not contain the query of the address, which may contain secrets."""
    target = response.headers.get("Location", "").partition("?")[0]
    error = ClientResponseError(response.request_info, (), status=response.status, headers=response.headers)
    content = f"it redirects to {mask_text(target)}" if target else "it redirects without an address"
    error.response_content = content.encode()  # type: ignore[attr-defined]  # as in `raise_for_status`
    return error


async def _read_object(response: ClientResponse | LocalResponse, url: str) -> dict[str, Any]:
    """Read and parse a model's answer. The memory reserved for a large answer is released when it is parsed.

    Raises:
        ResponseTooLong: the answer is longer than `max_model_answer_bytes` or has too many JSON values.
        ModelFailed: the answer is not a JSON object.
    """
    release: Callable[[], None] | None = response.release if isinstance(response, LocalResponse) else None

    async def reserve(size: int) -> None:
        nonlocal release
        release = await current_memory().reserve(size)

    try:
        if not is_ok(response):
            await raise_for_status(cast("ClientResponse", response))
        body = await read_body(response, limits.answer, reserve)
        if body.startswith(COMPRESSED_STARTS):
            if release is not None:
                release()
            await reserve(limits.answer)
            body = await asyncio.to_thread(decompress_layers, body, limits.answer)
        if len(body) <= LARGE_BYTES:
            answer = _parse_object(body, url)
        else:
            answer = await asyncio.to_thread(_parse_large_object, body, url)
        raise_error_answer(cast("ClientResponse", response), answer)
        return answer
    finally:
        if release is not None:
            release()


def _parse_large_object(body: bytes, url: str) -> dict[str, Any]:
    check_parsed_size(body, limits.answer)
    return _parse_object(body, url)


def _parse_object(body: bytes, url: str) -> dict[str, Any]:
    """Parse a model's answer as a JSON object. NaN is accepted, because it occurs in log probabilities.

    A model may write half a character; the endpoint then answers with a lone surrogate, which becomes U+FFFD.

    Raises:
        ModelFailed: the answer is not a JSON object.
    """
    try:
        answer = _parse_json(body)
    except (ValueError, RecursionError) as error:
        start = body[:200].decode("utf-8", errors="replace")
        raise ModelFailed(f"the answer is not JSON: {start!r}", where=url) from error
    if not isinstance(answer, dict):
        raise ModelFailed(f"the answer is JSON but not an object: {type(answer).__name__}", where=url)
    return answer


def _parse_json(body: bytes) -> Any:
    """Parse JSON with NaN; replace lone surrogates, which `from_json` rejects."""
    try:
        return from_json(body, allow_inf_nan=True)
    except ValueError:
        if not _SURROGATE_ESCAPE.search(body):
            raise
        text = json.dumps(json.loads(body), ensure_ascii=False)
        return from_json(replace_surrogates(text), allow_inf_nan=True)


class PacedOpenAI(NeMoGymAsyncOpenAI):
    """The OpenAI client of a model server: applies an `AdaptiveLimit` and attributes failures to the server.

    When the retry budget for rejections is exhausted, the last rejection is raised with its status and body.
    """

    name: str
    """Instance name of the model server, used in errors."""
    max_concurrent_requests: int | None = None
    default_query: dict[str, str] = Field(default_factory=dict)
    """Query parameters added to every call."""
    key_header: Literal["authorization", "api-key"] = "authorization"
    _last_rejection: int | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        _ = self.limit  # create it now: semaphores are claimed in the order in which clients are created

    @cached_property  # an ordinary attribute after the first use; pydantic's private attributes are slow
    def limit(self) -> AdaptiveLimit:
        shared = claim_semaphore(self.name) if self.max_concurrent_requests else None
        return AdaptiveLimit(self.max_concurrent_requests, shared=shared)

    @cached_property
    def _rejection_notice(self) -> RejectionNotice:
        return RejectionNotice()

    @cached_property
    def _headers(self) -> dict[str, str]:
        return {**self._key_headers(self.key_header), **self.default_headers}

    @cached_property
    def _json_headers(self) -> dict[str, str]:
        return with_header(self._headers, "Content-Type", "application/json")

    async def _call(self, method: str, path: str, *, root: str | None = None, **options: Any) -> dict[str, Any]:
        """Send a request within the concurrency limit; retry rejections (429, 503) within the budget."""
        rejections, first_rejection_at = 0, 0.0
        while True:
            generation = self.limit.try_enter()
            if generation is None:
                rejection_status = self._last_rejection if self.limit.is_reduced else None
                with reporting_wait(self.name, path, slot_reason(rejection_status)):
                    generation = await self._enter()
            try:
                answer = await super()._call(method, path, root=root, **options)
                self.limit.record_success()
                return answer
            except ClientResponseError as rejection:
                if rejection.status not in OVERLOAD_STATUSES or is_after_events(rejection):
                    raise
                if is_quota_used_up(rejection):
                    rejection.status = HTTPStatus.PAYMENT_REQUIRED  # no pause helps, unlike after a rate limit
                    raise
                retry_after = _retry_after(rejection)
                self.limit.record_rejection(generation, retry_after)
                rejections, first_rejection_at = rejections + 1, first_rejection_at or time.monotonic()
                self._last_rejection = status = rejection.status
                pause = _pause_after_rejection(rejections, first_rejection_at, retry_after)
                if pause is None:
                    raise
                self._rejection_notice.record(self.name, rejection, time.monotonic() - first_rejection_at + pause)
            except GymError as failure:
                raise self._attribute(failure) from failure.__cause__
            finally:
                self.limit.leave()
            with reporting_wait(self.name, path, retry_reason(status, rejections, pause)):
                await asyncio.sleep(pause)

    async def _request(self, **options: Any) -> ClientResponse:
        """Send one request with the headers and query parameters of the server; rejections are not retried here."""
        headers = self._json_headers if "json" in options else self._headers
        if "headers" in options:
            headers = {**headers, **options.pop("headers")}
        if self.default_query:
            options["params"] = {**self.default_query, **(options.get("params") or {})}
        return await send(
            policy=_MODEL_CALL_WITHOUT_OVERLOAD,
            callee=self.name,
            safe_to_retry=True,
            headers=headers,
            max_bytes=limits.answer,
            **options,
        )

    async def _enter(self) -> int:
        """Wait for a slot until the deadline; raise `DeadlineExceeded` after it."""
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
        """Set the location of an error to this server's name; prepend the previous location to its text."""
        if failure.where != self.name:
            if failure.where:
                failure.problem = f"{failure.where}: {failure.problem}"
            failure.where = self.name
        return failure


def _seconds_left() -> float | None:
    return deadlines.shorter_of(deadlines.seconds_left(), http_sessions.settings().request_timeout_seconds)


def _retry_after(rejection: ClientResponseError) -> float | None:
    value = rejection.headers.get("Retry-After") if rejection.headers else None
    return parse_retry_after(value, datetime.now(UTC))


def _pause_after_rejection(rejections: int, first_rejection_at: float, retry_after: float | None) -> float | None:
    """Return the seconds to wait before the call is retried; None if the retry budget is exhausted."""
    return next_pause(
        MODEL_CALL,
        failures=rejections,
        spent=time.monotonic() - first_rejection_at,
        left=_seconds_left(),
        uniform=random.uniform,
        retry_after=retry_after,
    )


def validate_answer(kind: type[AnswerT], answer: dict[str, Any], *, callee: str) -> AnswerT:
    """Return an endpoint's answer as an object of the class `kind`. `callee` is the model server's name in errors.

    Raises:
        ModelFailed: the answer is not a valid `kind`.
    """
    try:
        return validate_or_repair(kind, answer, new_id=new_id)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        location, name = ".".join(map(str, problem["loc"])), kind.__name__.removeprefix("NeMoGym")
        raise ModelFailed(
            f"the endpoint's answer is not a valid {name}: {location}: {problem['msg']}",
            where=callee,
            fix="check that the configured address is an endpoint of this API",
        ) from error
