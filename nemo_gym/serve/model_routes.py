"""Endpoints of model servers beside generation: the list of models, token counts and tokenization.

Clients of every dialect ask for them, some before their first request. A server answers requests for any model name, so
each name is a model of it.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from fastapi import Body, FastAPI, HTTPException, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.convert.gemini_request import accepted_gemini_request
from nemo_gym.convert.json_access import numbered_ids
from nemo_gym.convert.responses_anthropic import accepted_request
from nemo_gym.errors import ConversionError

MODELS_PATH, COUNT_TOKENS_PATH, TOKENIZE_PATH = "/v1/models", "/v1/messages/count_tokens", "/tokenize"
GENERATE_PATH = "/v1beta/models/{model:path}:generateContent"
STREAM_GENERATE_PATH = "/v1beta/models/{model:path}:streamGenerateContent"
COUNT_GEMINI_TOKENS_PATH = "/v1beta/models/{model:path}:countTokens"

_VERSIONED = ("/v1/responses", "/v1/chat/completions", "/v1/messages", COUNT_TOKENS_PATH, MODELS_PATH)
_ALIASES = {f"/v1{path}": path for path in _VERSIONED} | {path.removeprefix("/v1"): path for path in _VERSIONED}
_ALIASES |= {f"/v1{TOKENIZE_PATH}": TOKENIZE_PATH, f"/v1/v1{TOKENIZE_PATH}": TOKENIZE_PATH}
"""Paths of clients that add `/v1` to a base URL that has it, or do not add it to one that lacks it."""

StreamForm = Literal["events", "array"]
"""How Gemini streams: server-sent events (`alt=sse`) or a JSON array of chunks."""
CountTokens = Callable[[Request, dict[str, Any], list[str]], Awaitable[int]]
"""Returns the number of prompt tokens of a Responses request that was converted without some fields."""
AnswerGemini = Callable[[Request, dict[str, Any], str, StreamForm | None], Awaitable[Response]]
"""Answers a Gemini request for a model, in a form of a stream or, with None, whole."""
Tokenize = Callable[[Request, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a `/tokenize` request of vLLM."""


def canonical_path(path: str) -> str:
    """Return the path of the route that answers a request, for a base URL with or without `/v1`."""
    if path in _ALIASES:
        return _ALIASES[path]
    for version in ("/v1/v1beta/", "/v1beta/v1beta/"):
        if path.startswith(version):
            return path[path.index("/v1beta/", 1) :]
    if path.startswith("/v1/models/") and path.endswith((":generateContent", ":streamGenerateContent", ":countTokens")):
        return "/v1beta" + path.removeprefix("/v1")
    return path


class CanonicalPathMiddleware:
    """Gives every request the path of its route."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = canonical_path(scope["path"])
            if path != scope["path"]:
                scope = {**scope, "path": path, "raw_path": path.encode("utf-8")}
        await self.app(scope, receive, send)


def add_model_routes(app: FastAPI, name: str, tokenize: Tokenize, count_tokens: CountTokens) -> None:
    """Add the list of models, token counts and tokenization; `name` is the model's name."""

    async def list_models() -> dict[str, Any]:
        model = describe_model(name)
        listing = {"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name}
        return {**listing, "models": [describe_gemini_model(name)]}

    async def show_model(model: str) -> dict[str, Any]:
        return {**describe_gemini_model(model), **describe_model(model)}

    async def list_gemini_models() -> dict[str, Any]:
        return {"models": [describe_gemini_model(name)]}

    async def show_gemini_model(model: str) -> dict[str, Any]:
        return {**describe_gemini_model(model), **describe_model(model)}

    async def count_message_tokens(request: Request, body: dict[str, Any] = Body()) -> dict[str, int]:
        with as_refusals():
            params, dropped = accepted_request(body, new_id=numbered_ids())
        return {"input_tokens": await count_tokens(request, params, dropped)}

    async def answer_tokenize(request: Request, body: dict[str, Any] = Body()) -> dict[str, Any]:
        return await tokenize(request, body)

    app.get(MODELS_PATH, response_model=None)(list_models)
    app.get(MODELS_PATH + "/{model:path}", response_model=None)(show_model)
    app.get("/v1beta/models", response_model=None)(list_gemini_models)
    app.get("/v1beta/models/{model:path}", response_model=None)(show_gemini_model)
    app.post(COUNT_TOKENS_PATH, response_model=None)(count_message_tokens)
    app.post(TOKENIZE_PATH, response_model=None)(answer_tokenize)


def add_gemini_routes(app: FastAPI, answer: AnswerGemini, count_tokens: CountTokens) -> None:
    """Add the methods of the Gemini API."""

    async def generate(request: Request, model: str, body: dict[str, Any] = Body()) -> Response:
        return await answer(request, body, model, None)

    async def stream_generate(request: Request, model: str, body: dict[str, Any] = Body()) -> Response:
        form: StreamForm = "events" if request.query_params.get("alt") == "sse" else "array"
        return await answer(request, body, model, form)

    async def count_gemini_tokens(request: Request, model: str, body: dict[str, Any] = Body()) -> dict[str, int]:
        with as_refusals():
            params, dropped = accepted_gemini_request(
                body.get("generateContentRequest") or body, model=model, new_id=numbered_ids()
            )
        return {"totalTokens": await count_tokens(request, params, dropped)}

    app.post(GENERATE_PATH, response_model=None)(generate)
    app.post(STREAM_GENERATE_PATH, response_model=None)(stream_generate)
    app.post(COUNT_GEMINI_TOKENS_PATH, response_model=None)(count_gemini_tokens)


@contextmanager
def as_refusals() -> Iterator[None]:
    """Turn the error of a request that cannot be converted into one of the API (400)."""
    try:
        yield
    except ConversionError as error:
        raise HTTPException(400, str(error)) from error


def describe_model(name: str) -> dict[str, Any]:
    """Return a model with the fields of the OpenAI and the Anthropic API."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "nemo-gym",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }


def describe_gemini_model(name: str) -> dict[str, Any]:
    """Return a model with the fields of the Gemini API."""
    methods = ["generateContent", "streamGenerateContent", "countTokens"]
    return {"name": f"models/{name}", "displayName": name, "version": "1", "supportedGenerationMethods": methods}


class ModelInformation:
    """What a model server says about its model, without generating; a mixin of model servers, which override it."""

    @property
    def served_model_name(self) -> str:
        """The name under which the model is listed; requests may have any name."""
        name: str = self.config.name  # type: ignore[attr-defined]
        return name

    async def count_prompt_tokens(self, request: Request, params: Any) -> int:  # noqa: ARG002 - for subclasses
        """Return the number of prompt tokens of a Responses request; override it if the endpoint has a tokenizer."""
        raise self._no_tokenizer()

    async def tokenize(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Answer a `/tokenize` request of vLLM; override it if the endpoint has a tokenizer."""
        raise self._no_tokenizer()

    def _no_tokenizer(self) -> HTTPException:
        """Return the error of a server without a tokenizer; clients do not repeat a request after 404."""
        return HTTPException(404, f"{self.served_model_name} cannot count tokens: its endpoint offers no tokenizer")
