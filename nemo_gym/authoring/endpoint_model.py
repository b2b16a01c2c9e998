"""Base class of model servers that forward Responses and chat requests to an OpenAI-compatible endpoint."""

from functools import cached_property
from typing import Any, Literal

from fastapi import Request as HttpRequest
from pydantic import Field

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.serve.event_stream import Emit
from nemo_gym.transport.model_client import PacedOpenAI, validate_answer
from nemo_gym.transport.model_streams import stream_completion, stream_response

Request = NeMoGymResponseCreateParamsNonStreaming | NeMoGymChatCompletionCreateParamsNonStreaming


class EndpointModelConfig(BaseResponsesAPIModelConfig):
    openai_base_url: str
    openai_api_key: str
    openai_model: str
    """Model name in every request; replaces the name that the caller sent."""
    extra_body: dict[str, Any] = {}
    """Fields added to each request; fields that the caller sends take precedence."""
    openai_default_headers: dict[str, str] = {}
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Concurrent requests in the whole run; unlimited if unset. Refusals (429, 503) lower it temporarily."""
    drop_input_reasoning_items: bool = False
    """Remove reasoning items from the input, for endpoints that refuse their own reasoning."""


class EndpointModel(SimpleResponsesAPIModel):
    """A model server without state: a request is one request to the endpoint."""

    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # no state between requests, so no session cookie
    PASSES_ENGINE_OPTIONS = True
    REPORTS_EVERY_COUNT = True

    config: EndpointModelConfig

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        _ = self._client  # created at start, so that a wrong configuration is reported before the first request

    @cached_property  # faster than a private attribute of pydantic
    def _client(self) -> PacedOpenAI:
        return self.make_client()

    def make_client(self) -> PacedOpenAI:
        """Create the client for the configured endpoint; override for another kind of endpoint."""
        return PacedOpenAI(
            name=self.config.name,
            base_url=self.config.openai_base_url,
            api_key=self.config.openai_api_key,
            default_headers=self.config.openai_default_headers,
            max_concurrent_requests=self.config.max_concurrent_requests,
        )

    @property
    def served_model_name(self) -> str:
        return self.config.openai_model

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        reply = await self.ask("responses", self.response_request(body))
        return validate_answer(NeMoGymResponse, reply, callee=self.config.name)

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        reply = await self.ask("chat", self.request_for(body))
        return validate_answer(NeMoGymChatCompletion, reply, callee=self.config.name)

    async def stream_responses(
        self,
        request: HttpRequest,  # noqa: ARG002 - every live method takes it
        body: NeMoGymResponseCreateParamsNonStreaming,
        emit: Emit,
    ) -> NeMoGymResponse:
        """Answer a request and report its events as the endpoint streams them."""
        if type(self).responses is not EndpointModel.responses:
            return await self.responses(body)
        streamed = {**self.response_request(body), "stream": True}
        reply = await stream_response(self._client, streamed, emit, self.config.name)
        return validate_answer(NeMoGymResponse, reply, callee=self.config.name)

    async def stream_chat_completions(
        self,
        request: HttpRequest,  # noqa: ARG002
        body: NeMoGymChatCompletionCreateParamsNonStreaming,
        emit: Emit,
    ) -> NeMoGymChatCompletion:
        """Answer a request and report its chunks as the endpoint streams them."""
        if type(self).chat_completions is not EndpointModel.chat_completions:
            return await self.chat_completions(body)
        chat = {**self.request_for(body), "stream": True, "stream_options": {"include_usage": True}}
        reply = await stream_completion(self._client, chat, emit, self.config.name)
        return validate_answer(NeMoGymChatCompletion, reply, callee=self.config.name)

    def response_request(self, body: NeMoGymResponseCreateParamsNonStreaming) -> dict[str, Any]:
        """Build a request to the endpoint's Responses API."""
        request = self.request_for(body)
        if self.config.drop_input_reasoning_items and isinstance(request["input"], list):
            request["input"] = [item for item in request["input"] if item.get("type") != "reasoning"]
        return request

    def request_for(self, body: Request) -> dict[str, Any]:
        """Build the request: configured extras, then the fields of the caller, then the configured model."""
        return {**self.config.extra_body, **body.model_dump(exclude_unset=True), "model": self.config.openai_model}

    async def ask(self, dialect: Literal["responses", "chat"], request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return the endpoint's reply unchanged."""
        if dialect == "responses":
            return await self._client.create_response(**request)
        return await self._client.create_chat_completion(**request)
