"""The methods with which a model server answers, described once when the server starts."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from nemo_gym.serve.endpoints import async_handler, resolved_signature
from nemo_gym.serve.event_stream import Emit
from nemo_gym.serve.response_cache import ResponseCache
from nemo_gym.wire.engine_options import ENGINE_OPTIONS, with_engine_options


@dataclass
class ModelMethod:
    """A method of a model server (`responses` or `chat_completions`) and the class of its body, resolved once."""

    call: Callable[..., Any]
    params: type[BaseModel]
    takes_request: bool
    answer_class: type[BaseModel]
    cache: ResponseCache | None = None
    live: Callable[..., Any] | None = None
    """`stream_responses` or `stream_chat_completions` of a server whose endpoint streams."""

    @classmethod
    def of(
        cls,
        method: Callable[..., Any],
        params: type[BaseModel],
        answer_class: type[BaseModel],
        cache: ResponseCache | None,
    ) -> "ModelMethod":
        """Describe `method`; its body class is the annotation of its last parameter or, without one, `params`."""
        parameters = list(resolved_signature(method).parameters.values())
        annotation = parameters[-1].annotation if parameters else None
        if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
            params = annotation
        takes_request = bool(parameters) and parameters[0].name == "request"
        live = getattr(getattr(method, "__self__", None), f"stream_{getattr(method, '__name__', '')}", None)
        return cls(async_handler(method), params, takes_request, answer_class, cache, live)

    def validate(self, body: dict[str, Any] | BaseModel) -> BaseModel:
        """Validate a request body as `params`; an instance of `params` is returned unchanged.

        Raises:
            RequestValidationError: the body is invalid (422), in the format of FastAPI.
        """
        if isinstance(body, BaseModel) and not isinstance(body, self.params):
            body = body.model_dump(exclude_unset=True)
        params = self.params
        if isinstance(body, dict) and not ENGINE_OPTIONS.isdisjoint(body.keys() - self.names):
            params = with_engine_options(params)
            body = {key: value for key, value in body.items() if key in self.names or key in ENGINE_OPTIONS}
        try:
            return params.model_validate(body)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            raise RequestValidationError(
                [{**problem, "loc": ("body", *problem["loc"])} for problem in problems], body=body
            ) from None

    def validate_strictly(self, body: dict[str, Any]) -> BaseModel | None:
        """Return a valid request, or None if our request type does not accept it as it is."""
        try:
            return self.params.model_validate(body)
        except ValidationError:
            return None

    @cached_property
    def names(self) -> frozenset[str]:
        """The fields of the request type."""
        return frozenset(self.params.model_fields)

    async def __call__(self, request: Request, params: BaseModel, emit: Emit | None = None) -> Any:
        """Answer a request; with `emit`, live if the server can. A stored answer has no events."""
        if self.cache is not None:
            return await self.cache.answer(params, self.answer_class, partial(self._call, request, params, emit))
        return await self._call(request, params, emit)

    async def _call(self, request: Request, params: BaseModel, emit: Emit | None) -> Any:
        if emit is not None and self.live is not None:
            return await self.live(request, params, emit)
        return await (self.call(request, params) if self.takes_request else self.call(params))
