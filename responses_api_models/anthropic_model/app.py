"""Anthropic model: the Messages API behind the Responses API, with tools, thinking, images and streams."""

from functools import cached_property
from time import time
from typing import Any, Literal

from fastapi import Request
from pydantic import Field

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.convert.json_access import dict_at, new_id, to_dict, warn_once
from nemo_gym.convert.message_stream import message_from_events
from nemo_gym.convert.responses_anthropic import messages_request, options_lost_in_messages, response_from_message
from nemo_gym.convert.responses_chat import responses_request
from nemo_gym.errors import ConversionError, ModelFailed, UnsupportedRequest
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.serve.event_stream import Emit
from nemo_gym.transport.model_client import PacedOpenAI, validate_answer
from responses_api_models.anthropic_model.live_answer import LiveAnswer, completion_of_response, with_id_of_call

Json = dict[str, Any]
Effort = Literal["low", "medium", "high", "xhigh", "max"]


class AnthropicModelConfig(BaseResponsesAPIModelConfig):
    anthropic_base_url: str
    """Up to and including `/v1`."""
    anthropic_api_key: str
    anthropic_model: str
    """Model name in every request; replaces the name that the caller sent."""
    max_tokens: int = Field(default=8192, ge=1)
    """Limit of answers to requests without one; the Messages API requires a limit."""
    thinking: bool | Literal["enabled", "adaptive", "disabled"] | dict[str, Any] | None = None
    """Unset: the default of the model. `adaptive`, or `enabled` with `thinking_budget_tokens`."""
    thinking_budget_tokens: int | None = Field(default=None, ge=1024)
    effort: Effort | None = None
    """Effort of requests without `reasoning.effort`."""
    anthropic_version: str = "2023-06-01"
    anthropic_beta: list[str] = []
    """Beta features, for the header `anthropic-beta`."""
    extra_body: dict[str, Any] = {}
    """Fields added to each request; fields that the caller sends take precedence."""
    default_headers: dict[str, str] = {}
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Concurrent requests in the whole run; unlimited if unset. Refusals (429, 503, 529) lower it temporarily."""


class AnthropicClient(PacedOpenAI):
    """A client that authenticates as the Messages API expects."""

    anthropic_headers: dict[str, str] = {}

    @cached_property
    def _headers(self) -> dict[str, str]:
        return {"x-api-key": str(self.api_key), **self.anthropic_headers, **self.default_headers}

    async def create_message(self, request: Json) -> Json:
        return await self._call("POST", "messages", json=request)

    async def count_tokens(self, request: Json) -> int:
        return int((await self._call("POST", "messages/count_tokens", json=request))["input_tokens"])


class AnthropicModel(SimpleResponsesAPIModel):
    """Forwards requests to the Messages API."""

    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # no state between requests, so no session cookie
    PASSES_ENGINE_OPTIONS = True
    REPORTS_EVERY_COUNT = True

    config: AnthropicModelConfig

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        _ = self._client  # created at start, so that a wrong configuration is reported before the first request

    @cached_property  # faster than a private attribute of pydantic
    def _client(self) -> AnthropicClient:
        headers = {"anthropic-version": self.config.anthropic_version}
        if self.config.anthropic_beta:
            headers["anthropic-beta"] = ",".join(self.config.anthropic_beta)
        return AnthropicClient(
            name=self.config.name,
            base_url=self.config.anthropic_base_url,
            api_key=self.config.anthropic_api_key,
            anthropic_headers=headers,
            default_headers=self.config.default_headers,
            max_concurrent_requests=self.config.max_concurrent_requests,
        )

    @property
    def served_model_name(self) -> str:
        return self.config.anthropic_model

    async def count_prompt_tokens(self, request: Request, params: NeMoGymResponseCreateParamsNonStreaming) -> int:  # noqa: ARG002
        """Count with the tokenizer of the endpoint."""
        message = self.message_request(to_dict(params))
        kept = ("model", "messages", "system", "tools", "tool_choice", "thinking")
        return await self._client.count_tokens({name: message[name] for name in kept if name in message})

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        params = to_dict(body)
        return self.response(params, await self._client.create_message(self.message_request(params)))

    async def stream_responses(
        self,
        request: Request,  # noqa: ARG002 - every live method takes it
        body: NeMoGymResponseCreateParamsNonStreaming,
        emit: Emit,
    ) -> NeMoGymResponse:
        """Answer a request and report its events while the endpoint streams the message."""
        params = to_dict(body)
        live = LiveAnswer(self.config.anthropic_model, new_id)
        events: list[Json] = []

        async def report(event: Json) -> None:
            events.append(event)
            for answer_event in live.feed(event):
                await emit(answer_event)

        whole = await self._client.stream("messages", {**self.message_request(params), "stream": True}, report)
        try:
            message = whole or message_from_events(events)
        except ConversionError as error:
            raise ModelFailed(error.problem, where=self.config.name) from error
        response = self.response(params, message)
        if live.items:
            live.adopt(response)
        return response

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        chat = to_dict(body)
        try:
            params = responses_request(without_chat_options(chat), new_id=new_id)
        except ConversionError as error:
            raise UnsupportedRequest(error.problem, where=error.where, fix=error.fix) from error
        if chat.get("stop"):
            params["stop"] = chat["stop"]
        response = self.response(params, await self._client.create_message(self.message_request(params)))
        return validate_answer(
            NeMoGymChatCompletion, completion_of_response(to_dict(response)), callee=self.config.name
        )

    def message_request(self, params: Json) -> Json:
        """Convert a Responses request to the request for the endpoint.

        Raises:
            UnsupportedRequest: the Messages API cannot express it.
        """
        try:
            request = messages_request(
                {**params, "input": without_foreign_reasoning(params.get("input"))},
                model=self.config.anthropic_model,
                max_tokens=self.config.max_tokens,
                thinking=self.config.thinking,
                thinking_budget_tokens=self.config.thinking_budget_tokens,
            )
        except ConversionError as error:
            raise UnsupportedRequest(error.problem, where=error.where, fix=error.fix) from error
        effort = (params.get("reasoning") or {}).get("effort") or self.config.effort
        if effort is not None:
            request["output_config"] = {**request.get("output_config", {}), "effort": effort}
        if params.get("top_k") is not None:
            request["top_k"] = params["top_k"]
        stop = params.get("stop")
        if stop:
            request["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        for field in options_lost_in_messages(params):
            if field != "reasoning":
                warn_once(f"{field!r} is not sent to {request['model']}: the Messages API has no such option")
        return {**self.config.extra_body, **request}

    def response(self, params: Json, message: Json) -> NeMoGymResponse:
        """Convert the endpoint's message to a response.

        Raises:
            ModelFailed: it is not a message.
        """
        try:
            dict_at(message, "usage", "message")
            response = response_from_message(
                params, message, model=self.config.anthropic_model, now=int(time()), new_id=new_id
            )
        except ConversionError as error:
            raise ModelFailed(
                f"the endpoint's answer is not a message: {error}",
                where=self.config.name,
                fix="check that anthropic_base_url is an endpoint of the Messages API",
            ) from error
        response["output"] = [with_id_of_call(item) for item in response["output"]]
        return validate_answer(NeMoGymResponse, response, callee=self.config.name)


def without_foreign_reasoning(items: Any) -> Any:
    """Remove reasoning without a signature from a conversation: it is of another model, and the endpoint refuses it."""
    if not isinstance(items, list):
        return items
    return [item for item in items if item.get("type") != "reasoning" or item.get("encrypted_content")]


def without_chat_options(chat: Json) -> Json:
    """Return a chat request without the options that `message_request` or nothing takes from it."""
    dropped = ("stop", "seed", "frequency_penalty", "presence_penalty", "logit_bias")
    for name in dropped[1:]:
        if chat.get(name):
            warn_once(f"{name!r} is not sent: the Messages API has no such option")
    return {name: value for name, value in chat.items() if name not in dropped}


if __name__ == "__main__":
    AnthropicModel.run_webserver()
