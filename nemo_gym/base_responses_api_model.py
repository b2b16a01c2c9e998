"""Model servers: offer an LLM in three API dialects (OpenAI Responses, Chat Completions, Anthropic Messages).

A subclass overrides `responses` and `chat_completions`; both may take `request` as first parameter. `/v1/messages`
calls `responses`. A streamed answer is generated from the complete answer.

If the provider answers with an error, the server answers 500 with the provider's text. Then the header
`x-nemo-gym-failed` contains the name of this server and `x-nemo-gym-upstream-status` the status of the provider.
"""

import inspect
import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import Body, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, PrivateAttr, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym import chat_streaming, responses_streaming
from nemo_gym.anthropic_converter import AnthropicConverter
from nemo_gym.capture.middleware import CallCaptureMiddleware
from nemo_gym.capture.record import ModelCallRecord, build_model_call_record
from nemo_gym.capture.store import (
    CaptureStore,
    aggregate_model_call_metrics,
    capture_store,
    clear_model_call_captures_for_rollouts,
    merge_model_call_capture_into_record,
    read_model_call_records,
)
from nemo_gym.config.secrets import redact_text
from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.errors import ConversionError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.rollout_correlation import RolloutContextMiddleware, current_rollout_id, current_token_capture
from nemo_gym.serve.app import create_app
from nemo_gym.serve.endpoints import async_handler, json_bytes, json_response, resolved_signature
from nemo_gym.server_utils import BaseServer, SimpleServer
from nemo_gym.token_id_capture.call import run_captured
from nemo_gym.token_id_capture.context import CaptureContext
from nemo_gym.token_id_capture.control_routes import add_control_routes
from nemo_gym.token_id_capture.endpoints import capture_template, require_control_token
from nemo_gym.token_id_capture.external_capture import ledger_of
from nemo_gym.token_id_capture.middleware import UncapturedRequestMiddleware

logger = logging.getLogger(__name__)


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
        self.app = RolloutContextMiddleware(inner_app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@dataclass(frozen=True)
class _ModelMethod:
    """A method of a model server (`responses` or `chat_completions`) and the class of its body, resolved once."""

    call: Callable[..., Any]
    params: type[BaseModel]
    takes_request: bool

    @classmethod
    def of(cls, method: Callable[..., Any], params: type[BaseModel]) -> "_ModelMethod":
        """Describe `method`; its body class is the annotation of its last parameter or, without one, `params`."""
        parameters = list(resolved_signature(method).parameters.values())
        annotation = parameters[-1].annotation if parameters else None
        if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
            params = annotation
        takes_request = bool(parameters) and parameters[0].name == "request"
        return cls(async_handler(method), params, takes_request=takes_request)

    def validate(self, body: dict[str, Any] | BaseModel) -> BaseModel:
        """Validate a request body as `params`; an instance of `params` is returned unchanged.

        Raises:
            RequestValidationError: the body is invalid (422), in the format of FastAPI.
        """
        if isinstance(body, BaseModel) and not isinstance(body, self.params):
            body = body.model_dump(exclude_unset=True)
        try:
            return self.params.model_validate(body)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            raise RequestValidationError(
                [{**problem, "loc": ("body", *problem["loc"])} for problem in problems], body=body
            ) from None

    async def __call__(self, request: Request, params: BaseModel) -> Any:
        return await (self.call(request, params) if self.takes_request else self.call(params))


class SimpleResponsesAPIModel(BaseResponsesAPIModel, SimpleServer):
    """Base class of model servers: routes for three API dialects, implemented by two methods."""

    SESSION_POLICY = "cookie-only"
    """Model servers keep nothing between calls, so an episode goes on after a restart."""

    non_generating_model_routes: ClassVar[frozenset[tuple[str, str]]] = frozenset({("GET", "/"), ("GET", "/v1/models")})
    """Routes `(METHOD, path)` that generate no tokens; other requests of a rollout mark its token capture."""
    _token_capture: CaptureContext | None = PrivateAttr(default=None)

    def setup_webserver(self) -> FastAPI:
        """Build the app with the routes of every model server."""
        app = create_app(title=type(self).__name__)
        self.setup_session_middleware(app)
        config = getattr(self.server_client, "global_config_dict", None)
        store = capture_store(config)
        self._token_capture = capture_template(
            config, model_ref=self.config.name, num_workers=getattr(self.config, "num_workers", None)
        )
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
        responses = _ModelMethod.of(self.responses, NeMoGymResponseCreateParamsNonStreaming)
        chat = _ModelMethod.of(self.chat_completions, NeMoGymChatCompletionCreateParamsNonStreaming)

        async def raw_responses(request: Request, body: dict[str, Any]) -> Any:
            return await self._answer_responses(responses, request, body)

        async def answer_responses(request: Request, body: dict[str, Any] = Body()) -> Any:
            return _as_json(await raw_responses(request, body))

        answer_responses.takes_models = True  # type: ignore[attr-defined]  # read by serve.endpoints
        answer_responses.raw_handler = raw_responses  # type: ignore[attr-defined]

        async def answer_chat(request: Request, body: dict[str, Any] = Body()) -> Any:
            return await self._answer_chat(chat, request, body)

        async def answer_messages(request: Request, body: dict[str, Any] = Body()) -> Any:
            return await self._answer_messages(responses, request, body)

        app.post("/v1/chat/completions", response_model=NeMoGymChatCompletion)(answer_chat)
        app.post("/v1/responses", response_model=NeMoGymResponse)(answer_responses)
        app.post("/v1/messages", response_model=None)(answer_messages)
        return app

    @abstractmethod
    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """Answer a Chat Completions request. An override may also take `request` before `body`."""

    @abstractmethod
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Answer a Responses request. An override may also take `request` before `body`."""

    async def _ask(self, method: _ModelMethod, request: Request, body: dict[str, Any] | BaseModel) -> Any:
        """Validate a request and answer it; capture its tokens if it comes from a rollout whose tokens are captured."""
        rollout_id = current_rollout_id() if self._token_capture is not None and current_token_capture() else None
        if self._token_capture is None or rollout_id is None:
            return await method(request, method.validate(body))

        async def call_model(request_body: dict[str, Any] | BaseModel) -> Any:
            return await method(request, method.validate(request_body))

        return await run_captured(self._token_capture, rollout_id, body, call_model)

    async def _answer_responses(
        self, method: _ModelMethod, request: Request, body: dict[str, Any] | BaseModel
    ) -> BaseModel | Response:
        """Answer a Responses request: a pydantic model is returned as it is; JSON or a stream, as an HTTP response."""
        if isinstance(body, BaseModel) or not body.get("stream"):
            answer = await self._ask(method, request, body)
            return answer if isinstance(answer, BaseModel) else _as_json(answer)
        request_body, dropped = responses_streaming.sanitise_request(body)
        self._log_dropped(dropped)
        try:
            answer = await self._ask(method, request, request_body)
        except (HTTPException, RequestValidationError):
            raise
        except Exception as failure:  # in this dialect a stream reports failures as events
            logger.error("%s: a streamed response failed", self.config.name, exc_info=failure)
            description = redact_text(_describe_failure(failure), self.config)
            return _as_stream(
                responses_streaming.replay_failure(description, str(body.get("model") or self.config.name))
            )
        return answer if isinstance(answer, Response) else _as_stream(responses_streaming.replay(_as_data(answer)))

    async def _answer_chat(self, method: _ModelMethod, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Chat Completions request as JSON or as a stream."""
        if body.get("stream") is not True:
            return _as_json(await self._ask(method, request, body))
        request_body, dropped = chat_streaming.sanitise_request(body)
        self._log_dropped(dropped)
        answer = await self._ask(method, request, request_body)
        if isinstance(answer, Response):
            return answer
        options = body.get("stream_options")
        include_usage = isinstance(options, dict) and options.get("include_usage") is True
        return _as_stream(chat_streaming.replay(_as_data(answer), include_usage=include_usage))

    async def _answer_messages(self, method: _ModelMethod, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Messages request through `responses`, as JSON or as a stream."""
        converter = AnthropicConverter()
        try:
            params = method.params.model_validate(converter.request_to_responses(body))
        except (ConversionError, ValidationError) as error:
            return _invalid_messages_request(_describe_failure(error))
        answer = await self._ask(method, request, params)
        if isinstance(answer, Response):
            return answer
        message = converter.response_to_message(answer, str(body.get("model") or self.config.name))
        if body.get("stream"):
            return _as_stream(converter.replay(message))
        return Response(json_bytes(message), media_type="application/json")

    def _log_dropped(self, dropped: Iterable[str]) -> None:
        for field in dropped:
            logger.warning("%s: field omitted from a streaming request: %s", self.config.name, field)


def _as_json(answer: Any) -> Response:
    """Return an answer as a JSON response; a response is returned unchanged."""
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, BaseModel):
        return json_response(answer)
    return Response(json_bytes(answer), media_type="application/json")


def _as_data(answer: Any) -> dict[str, Any]:
    """Return the answer as a dict, with the same fields as an answer that is not streamed."""
    data: dict[str, Any] = answer.model_dump(mode="json", by_alias=True) if isinstance(answer, BaseModel) else answer
    return data


def _as_stream(events: Iterable[bytes]) -> Response:
    """Return all events as one response body: all are known already, and one write is cheaper than many."""
    return Response(b"".join(events), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _invalid_messages_request(problem: str) -> Response:
    """Return status 400 in the error format of the Messages API."""
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": problem}}
    return Response(json_bytes(body), status_code=400, media_type="application/json")


def _describe_failure(failure: Exception) -> str:
    """Return the text of a failure, with the body of the provider's answer if the exception has it."""
    if isinstance(failure, ValidationError):
        problems = failure.errors(include_url=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
    content = getattr(failure, "response_content", None)
    answer = content.decode("utf-8", "replace") if isinstance(content, bytes) else ""
    return f"{type(failure).__name__}: {failure}" + (f" {answer}" if answer else "")


__all__ = [
    "BaseResponsesAPIModel",
    "BaseResponsesAPIModelConfig",
    "Body",
    "CaptureStore",
    "ModelCallRecord",
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
    "read_model_call_records",
]
