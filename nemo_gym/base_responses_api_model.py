"""Model servers: offer an LLM in four API dialects (OpenAI Responses, Chat Completions, Anthropic Messages, Gemini).

A subclass overrides `responses` and `chat_completions`; both may take `request` as first parameter. `/v1/messages`
calls `responses`. A server whose endpoint streams also has `stream_responses` and `stream_chat_completions` with the
parameters `(request, body, emit)`: they give answer events (`convert.response_events`) or chunks to `emit` and return
the whole answer. Without them, a stream is generated from the whole answer.

If the endpoint refuses a request (4xx), the server answers with its status, otherwise 500; the body is an error of the
dialect. The header `x-nemo-gym-failed` contains the name of this server and `x-nemo-gym-upstream-status` the status of
the endpoint.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

from fastapi import Body, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, PrivateAttr
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym import chat_streaming, responses_streaming
from nemo_gym.capture.middleware import CallCaptureMiddleware
from nemo_gym.capture.model_answer import keep_model_answer
from nemo_gym.capture.record import ModelCallRecord, build_model_call_record
from nemo_gym.capture.store import (
    CaptureStore,
    aggregate_model_call_metrics,
    capture_store,
    captures_model_calls,
    clear_model_call_captures_for_rollouts,
    merge_model_call_capture_into_record,
    read_model_call_records,
)
from nemo_gym.config.secrets import redact_text
from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.convert import responses_anthropic
from nemo_gym.convert.answer_repair import with_reasoning_content
from nemo_gym.convert.error_bodies import ApiError
from nemo_gym.convert.flattened_tools import split_response
from nemo_gym.convert.gemini_answer import GeminiArrayEncoder, GeminiStreamEncoder, gemini_from_response
from nemo_gym.convert.gemini_request import accepted_gemini_request, wants_thoughts
from nemo_gym.convert.json_access import new_id, numbered_ids, to_dict
from nemo_gym.convert.stream_encoders import ChatEncoder, MessagesEncoder, ResponsesEncoder, StreamEncoder
from nemo_gym.convert.usage import with_numeric_usage
from nemo_gym.errors import ConfigError, ConversionError, UnsupportedRequest
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.rollout_correlation import RolloutContextMiddleware, current_rollout_id, current_token_capture
from nemo_gym.serve.app import create_app
from nemo_gym.serve.correlation import current_budget_text
from nemo_gym.serve.endpoints import json_bytes, json_response
from nemo_gym.serve.event_stream import Emit, stream_answer
from nemo_gym.serve.failures import DeadlineMiddleware, FailureMiddleware
from nemo_gym.serve.model_errors import api_error, check_not_failed, dialect_of_path
from nemo_gym.serve.model_methods import ModelMethod
from nemo_gym.serve.model_routes import (
    COUNT_TOKENS_PATH,
    MODELS_PATH,
    TOKENIZE_PATH,
    CanonicalPathMiddleware,
    ModelInformation,
    StreamForm,
    add_gemini_routes,
    add_model_routes,
    as_refusals,
)
from nemo_gym.serve.repeated_failures import FailureLog
from nemo_gym.serve.response_cache import ResponseCache
from nemo_gym.serve.rollout_budgets import CLOSE_BUDGET_PATH, close_current_budget, count_call
from nemo_gym.serve.validation_problems import shown_problems
from nemo_gym.server_utils import BaseServer, SimpleServer
from nemo_gym.token_id_capture.call import run_captured
from nemo_gym.token_id_capture.context import CaptureContext
from nemo_gym.token_id_capture.control_routes import add_control_routes
from nemo_gym.token_id_capture.external_capture import ledger_of
from nemo_gym.token_id_capture.middleware import UncapturedRequestMiddleware
from nemo_gym.token_id_capture.process_stores import capture_template, require_control_token
from nemo_gym.wire.engine_options import ENGINE_OPTIONS

Sanitise = Callable[[dict[str, Any]], tuple[dict[str, Any], list[str]]]
"""Rewrites a request for our request type; returns also what is left out."""


class ModelRoute(BaseModel):
    """A route of a model server, without wildcards and query."""

    method: str
    path: str


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """Configuration fields of every model server."""

    token_id_capture_non_generating_requests: list[ModelRoute] = []
    """Routes that generate no tokens, besides those that the server class declares."""


class BaseResponsesAPIModel(BaseServer):
    """A server whose configuration is a `BaseResponsesAPIModelConfig`."""

    config: BaseResponsesAPIModelConfig


class _CaptureMiddleware:
    """Removes the rollout prefix from paths and, with a store, captures the model calls of rollouts.

    With `tokens`, requests that token capture does not see mark their rollouts.
    """

    LAYER = "rollout"

    def __init__(
        self,
        app: ASGIApp,
        store: CaptureStore | None = None,
        model_ref: str | None = None,
        tokens: CaptureContext | None = None,
        non_generating: Collection[tuple[str, str]] = frozenset(),
    ) -> None:
        inner_app = app if tokens is None else UncapturedRequestMiddleware(app, tokens, non_generating)
        if store is not None:
            inner_app = CallCaptureMiddleware(inner_app, store, rollout_id=current_rollout_id, model_ref=model_ref)
        self.app = RolloutContextMiddleware(CanonicalPathMiddleware(inner_app))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@dataclass
class ModelExecutionOutcome:
    """How a model server answered a request, for the record of the call."""

    upstream_attempted: bool
    response_source: Literal["upstream", "local"] = "upstream"
    upstream_status_code: int | None = None
    local_response_reason: str | None = None


def start_model_execution(request: Any, *, upstream_attempted: bool) -> ModelExecutionOutcome:
    """Return the outcome of a request, to be completed by the server; it is also `request.state.model_execution`."""
    outcome = ModelExecutionOutcome(upstream_attempted)
    if (state := getattr(request, "state", None)) is not None:
        state.model_execution = outcome
    return outcome


def observability_enabled_from_config(config: object) -> bool:
    """Return whether a global configuration captures model calls."""
    return captures_model_calls(config)


class SimpleResponsesAPIModel(ModelInformation, BaseResponsesAPIModel, SimpleServer):
    """Base class of model servers: routes for four API dialects, implemented by two methods."""

    SESSION_POLICY = "cookie-only"
    """Model servers keep nothing between calls, so an episode goes on after a restart."""

    non_generating_model_routes: ClassVar[frozenset[tuple[str, str]]] = frozenset(
        {
            ("GET", "/"),
            ("GET", MODELS_PATH),
            ("POST", CLOSE_BUDGET_PATH),
            ("POST", COUNT_TOKENS_PATH),
            ("POST", TOKENIZE_PATH),
        }
    )
    """Routes `(METHOD, path)` that generate no tokens; other requests of a rollout mark its token capture."""
    PASSES_ENGINE_OPTIONS: ClassVar[bool] = False
    """The endpoint may have options that are in no dialect, such as `top_k`; otherwise they are dropped."""
    REPORTS_EVERY_COUNT: ClassVar[bool] = False
    """Answers have all token counts, 0 where the endpoint reports none: some clients refuse null. Streams always do."""
    _failure_log: FailureLog = PrivateAttr(default_factory=FailureLog)

    @cached_property  # an ordinary attribute after the first use; pydantic's private attributes are slow
    def _token_capture(self) -> CaptureContext | None:
        """The capture of token ids at this server; None if the configuration does not enable it."""
        config = getattr(self.server_client, "global_config_dict", None)
        workers = getattr(self.config, "num_workers", None)
        return capture_template(config, model_ref=self.config.name, num_workers=workers)

    def setup_webserver(self) -> FastAPI:
        """Build the app with the routes of every model server."""
        app = create_app(title=type(self).__name__)
        for refusal in (RequestValidationError, StarletteHTTPException):
            app.add_exception_handler(refusal, self._answer_refusal)
        self.setup_session_middleware(app)
        config = getattr(self.server_client, "global_config_dict", None)
        store = capture_store(config)
        declared = {(route.method, route.path) for route in self.config.token_id_capture_non_generating_requests}
        app.add_middleware(
            _CaptureMiddleware,
            store=store,
            model_ref=self.config.name,
            tokens=self._token_capture,
            non_generating=self.non_generating_model_routes | declared,
        )
        if self._token_capture is not None and self._token_capture.external_staging:
            add_control_routes(app, ledger_of(self._token_capture), require_control_token(config))
        cache = ResponseCache.from_config(config, self.config)
        if cache is not None and self._token_capture is not None:
            problem = "token capture needs every answer from the engine, not from the response cache"
            raise ConfigError(problem, where=self.config.name, fix="leave out --cache or the token capture")
        responses = ModelMethod.of(self.responses, NeMoGymResponseCreateParamsNonStreaming, NeMoGymResponse, cache)
        chat = ModelMethod.of(
            self.chat_completions, NeMoGymChatCompletionCreateParamsNonStreaming, NeMoGymChatCompletion, cache
        )

        raw_responses = partial(self._answer_responses, responses)

        async def answer_responses(request: Request, body: dict[str, Any] = Body()) -> Any:
            return self._json_answer(await raw_responses(request, body))

        answer_responses.accepts_pydantic = True  # type: ignore[attr-defined]  # read by serve.endpoints
        answer_responses.raw_handler = raw_responses  # type: ignore[attr-defined]

        async def answer_chat(request: Request, body: dict[str, Any] = Body()) -> Any:
            return await self._answer_chat(chat, request, body)

        async def answer_messages(request: Request, body: dict[str, Any] = Body()) -> Any:
            return await self._answer_messages(responses, request, body)

        app.post("/v1/chat/completions", response_model=NeMoGymChatCompletion)(answer_chat)
        app.post("/v1/responses", response_model=NeMoGymResponse)(answer_responses)
        app.post("/v1/messages", response_model=None)(answer_messages)
        app.post(CLOSE_BUDGET_PATH, response_model=None, include_in_schema=False)(close_current_budget)
        add_model_routes(app, self.served_model_name, self.tokenize, partial(self._count_tokens, responses))
        add_gemini_routes(app, partial(self._answer_gemini, responses), partial(self._count_tokens, responses))
        return app

    @abstractmethod
    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """Answer a Chat Completions request. An override may also take `request` before `body`."""

    @abstractmethod
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Answer a Responses request. An override may also take `request` before `body`."""

    async def _ask(
        self, method: ModelMethod, request: Request, body: dict[str, Any] | BaseModel, emit: Emit | None = None
    ) -> Any:
        """Validate a request and answer it; count it if it has the budget of a rollout.

        With `emit`, a server whose endpoint streams reports the events of the answer before it returns the answer.
        """
        ask = partial(self._ask_model, method, request, body, emit)
        return keep_model_answer(await (ask() if current_budget_text() is None else count_call(ask)))

    async def _ask_model(
        self, method: ModelMethod, request: Request, body: dict[str, Any] | BaseModel, emit: Emit | None
    ) -> Any:
        """Ask the model; capture the tokens of a call that comes from a rollout whose tokens are captured."""
        capture = self._token_capture
        rollout_id = current_rollout_id() if capture is not None and current_token_capture() else None
        if capture is None or rollout_id is None:
            params = body if type(body) is method.params else method.validate(body)
            if emit is not None or method.cache is not None:
                return await method(request, params, emit)
            return await (method.call(request, params) if method.takes_request else method.call(params))

        async def call_model(request_body: dict[str, Any] | BaseModel) -> Any:
            return await method(request, method.validate(request_body), emit)

        return await run_captured(capture, rollout_id, body, call_model)

    async def _answer_responses(
        self, method: ModelMethod, request: Request, body: dict[str, Any] | BaseModel
    ) -> BaseModel | Response:
        """Answer a Responses request: a pydantic model is returned as it is; JSON or a stream, as an HTTP response."""
        if isinstance(body, BaseModel):
            answer = await self._ask(method, request, body)
            return answer if isinstance(answer, BaseModel) else _as_json(answer)
        try:
            names = responses_streaming.namespaced_names(body)
        except ConversionError as error:
            raise UnsupportedRequest(error.problem, where=error.where, fix=error.fix) from error
        accepted = self._accept(method, body, responses_streaming.sanitise_request, is_unusual=bool(names))
        if body.get("stream"):
            encoder = ResponsesEncoder(str(body.get("model") or self.config.name), names, new_id)
            return await self._stream(method, request, accepted, encoder)
        answer = await self._ask(method, request, accepted)
        if names and not isinstance(answer, Response):
            return _as_json(split_response(_as_data(answer), names))
        answer = self._uniform_answer(answer)
        return answer if isinstance(answer, BaseModel) else _as_json(answer)

    def _uniform_answer(self, answer: Any) -> Any:
        """Return the answer of the model with all token counts and one name for reasoning, as streams have them."""
        if not self.REPORTS_EVERY_COUNT or not isinstance(answer, NeMoGymResponse | NeMoGymChatCompletion):
            return answer
        return with_numeric_usage(answer if isinstance(answer, NeMoGymResponse) else with_reasoning_content(answer))

    def _json_answer(self, answer: Any) -> Response:
        """Return the answer of the model as JSON, with every token count if this server reports them."""
        return _as_json(self._uniform_answer(answer))

    async def _answer_chat(self, method: ModelMethod, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Chat Completions request as JSON or as a stream."""
        accepted = self._accept(method, body, chat_streaming.sanitise_request, is_unusual=True)
        if not body.get("stream"):
            return self._json_answer(await self._ask(method, request, accepted))
        options = body.get("stream_options")
        include_usage = isinstance(options, dict) and options.get("include_usage") is True
        encoder = ChatEncoder(include_usage=include_usage, keeps_token_ids=body.get("return_token_ids") is True)
        return await self._stream(method, request, accepted, encoder)

    async def _answer_messages(self, method: ModelMethod, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Messages request through `responses`, as JSON or as a stream."""
        model = str(body.get("model") or self.config.name)
        try:
            params, dropped = responses_anthropic.accepted_request(body, new_id=numbered_ids())
            self._failure_log.report_dropped(self.config.name, dropped)
            accepted = self._accept(method, params, responses_streaming.sanitise_request)
        except (ConversionError, RequestValidationError) as error:
            problem = replace(api_error(error, self._redact), status=400)
            return _as_json(problem.body("messages"), 400)
        if body.get("stream"):
            return await self._stream(method, request, accepted, MessagesEncoder(model, new_id))
        answer = await self._ask(method, request, accepted)
        if isinstance(answer, Response):
            return answer
        data = to_dict(answer)
        check_not_failed(data, self.config.name)
        return _as_json(responses_anthropic.message_from_response(data, model=model, new_id=new_id))

    async def _answer_gemini(
        self, method: ModelMethod, request: Request, body: dict[str, Any], model: str, stream: StreamForm | None
    ) -> Response:
        """Answer a Gemini request through `responses`, as JSON, as a stream or as a JSON array of its chunks."""
        with as_refusals():
            converted = accepted_gemini_request(body, model=model, new_id=numbered_ids())
        accepted = self._accept_converted(method, *converted)
        include_thoughts = wants_thoughts(body)
        if stream is not None:
            form = GeminiStreamEncoder if stream == "events" else GeminiArrayEncoder
            return await self._stream(method, request, accepted, form(model, include_thoughts=include_thoughts))
        answer = await self._ask(method, request, accepted)
        if isinstance(answer, Response):
            return answer
        data = _as_data(answer)
        check_not_failed(data, self.config.name)
        return _as_json(gemini_from_response(data, model=model, include_thoughts=include_thoughts))

    async def _count_tokens(
        self, method: ModelMethod, request: Request, params: dict[str, Any], dropped: list[str]
    ) -> int:
        """Return the number of prompt tokens of a request that was converted to the Responses API."""
        return await self.count_prompt_tokens(request, method.validate(self._accept_converted(method, params, dropped)))

    def _accept_converted(
        self, method: ModelMethod, params: dict[str, Any], dropped: list[str]
    ) -> dict[str, Any] | BaseModel:
        """Validate a request that was converted to the Responses API without the fields `dropped`.

        Raises:
            HTTPException: 400, the request is invalid.
        """
        self._failure_log.report_dropped(self.config.name, dropped)
        try:
            return self._accept(method, params, responses_streaming.sanitise_request)
        except RequestValidationError as error:
            raise HTTPException(400, api_error(error, self._redact).message) from error

    def _accept(
        self, method: ModelMethod, body: dict[str, Any], sanitise: Sanitise, *, is_unusual: bool = False
    ) -> dict[str, Any] | BaseModel:
        """Validate a request; if it has something that our request type does not, rewrite it and report what is lost.

        A request that fits is not rewritten, which is faster, unless `is_unusual`.

        Raises:
            RequestValidationError: the request is invalid.
        """
        request = body
        params = None if is_unusual or body.get("stream") else method.validate_strictly(body)
        if params is None:
            try:
                request, dropped = sanitise(body)
            except ConversionError as error:
                raise UnsupportedRequest(error.problem, where=error.where, fix=error.fix) from error
            if not self.PASSES_ENGINE_OPTIONS:
                unused = (request.keys() - method.names) & ENGINE_OPTIONS
                dropped += [f"{key}: this model has no such option" for key in sorted(unused)]
                request = {key: value for key, value in request.items() if key not in unused}
            self._failure_log.report_dropped(self.config.name, dropped)
            params = method.validate(request)
        return params if self._token_capture is None else request

    async def _stream(
        self, method: ModelMethod, request: Request, accepted: dict[str, Any] | BaseModel, encoder: StreamEncoder
    ) -> Response:
        """Answer a request with a stream: live if the endpoint streams, else from the whole answer."""

        async def produce(emit: Emit) -> dict[str, Any] | Response:
            answer = await self._ask(method, request, accepted, emit)
            if isinstance(answer, Response):
                return answer
            data = _as_data(answer)
            if not isinstance(encoder, ResponsesEncoder):
                check_not_failed(data, self.config.name)
            return data

        return await stream_answer(produce, encoder, self._describe_late_failure)

    def _describe_late_failure(self, error: Exception) -> ApiError:
        """Describe a failure after the headers of a stream were sent, and log it."""
        described = api_error(error, self._redact)
        self._failure_log.report(logging.ERROR, f"{self.config.name}: a streamed answer failed: {described.message}")
        return described

    def _redact(self, text: str) -> str:
        return redact_text(text, self.config)

    def setup_exception_middleware(self, app: FastAPI) -> None:
        """Add the middleware for error answers, in the form of the dialect, and for deadlines. Must be added last."""

        def shape(path: str, error: BaseException) -> tuple[int, dict[str, Any]] | None:
            dialect = dialect_of_path(path)
            if dialect is None:
                return None
            described = api_error(error, self._redact)
            return described.status, described.body(dialect)

        app.add_middleware(DeadlineMiddleware, server_name=self.config.name)
        app.add_middleware(
            FailureMiddleware,
            server_name=self.config.name,
            redact=self._redact,
            shape=shape,
            failure_log=self._failure_log,
        )

    def _answer_refusal(self, request: Request, error: Exception) -> Response:
        """Answer a request that this server refuses, in the form of its dialect and in that of FastAPI (`detail`)."""
        described = api_error(error, self._redact)
        dialect = dialect_of_path(request.url.path) or "chat"
        if dialect in ("messages", "gemini") and described.status == 422:
            described = replace(described, status=400)
        body = described.body(dialect)
        if isinstance(error, RequestValidationError):
            body["detail"] = shown_problems(list(error.errors()))
            problem = f"{self.config.name}: {request.url.path}: invalid: {described.message}"
            self._failure_log.report(logging.WARNING, problem)
        elif isinstance(error, StarletteHTTPException):
            body["detail"] = error.detail
        return _as_json(body, described.status, getattr(error, "headers", None))


def _as_json(answer: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer as a JSON response; a response is returned unchanged."""
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, BaseModel):
        return json_response(answer)
    return Response(json_bytes(answer), status, headers, media_type="application/json")


_orjson_dispatch_response = _as_json


def _as_data(answer: Any) -> dict[str, Any]:
    """Return the answer as a dict, with the same fields as an answer that is not streamed."""
    if isinstance(answer, NeMoGymResponse | NeMoGymChatCompletion):
        answer = with_numeric_usage(answer)
    data: dict[str, Any] = answer.model_dump(mode="json", by_alias=True) if isinstance(answer, BaseModel) else answer
    return data


__all__ = [
    "BaseResponsesAPIModel",
    "BaseResponsesAPIModelConfig",
    "Body",
    "CaptureStore",
    "ModelCallRecord",
    "ModelExecutionOutcome",
    "NeMoGymChatCompletion",
    "NeMoGymChatCompletionCreateParamsNonStreaming",
    "NeMoGymResponse",
    "NeMoGymResponseCreateParamsNonStreaming",
    "SimpleResponsesAPIModel",
    "_CaptureMiddleware",
    "aggregate_model_call_metrics",
    "build_model_call_record",
    "clear_model_call_captures_for_rollouts",
    "merge_model_call_capture_into_record",
    "observability_enabled_from_config",
    "read_model_call_records",
    "start_model_execution",
]
