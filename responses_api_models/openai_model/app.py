"""OpenAI model: passes Responses and chat requests on to an OpenAI-compatible endpoint."""

from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.net.limits import PacedOpenAI, understood
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)

Request = NeMoGymResponseCreateParamsNonStreaming | NeMoGymChatCompletionCreateParamsNonStreaming


class SimpleModelServerConfig(BaseResponsesAPIModelConfig):
    openai_base_url: str
    openai_api_key: str
    openai_model: str
    """The model every request asks for, whatever the caller wrote."""
    extra_body: dict[str, Any] = {}
    """Fields added to each request; what the caller sets wins."""
    openai_default_headers: dict[str, str] = {}
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Requests sent at the same time by this process; unlimited when unset. Refusals (429, 503) lower it."""
    drop_input_reasoning_items: bool = False
    """Leave reasoning out of the input, for endpoints that refuse to read what they once said."""


class SimpleModelServer(SimpleResponsesAPIModel):
    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # nothing is kept between requests, so nobody need be recognised

    config: SimpleModelServerConfig

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        _ = self._client  # made now, so that what is wrong with the configuration is said before anybody asks

    @cached_property  # a plain attribute once it is there; pydantic's private ones are looked up slowly
    def _client(self) -> PacedOpenAI:
        return self.make_client()

    def make_client(self) -> PacedOpenAI:
        """The client for the configured endpoint."""
        return PacedOpenAI(
            name=self.config.name,
            base_url=self.config.openai_base_url,
            api_key=self.config.openai_api_key,
            default_headers=self.config.openai_default_headers,
            max_concurrent_requests=self.config.max_concurrent_requests,
        )

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        request = self.request_for(body)
        if self.config.drop_input_reasoning_items and isinstance(request["input"], list):
            request["input"] = [item for item in request["input"] if item.get("type") != "reasoning"]
        return understood(NeMoGymResponse, await self.ask("responses", request), where=self.config.name)

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        answer = await self.ask("chat", self.request_for(body))
        return understood(NeMoGymChatCompletion, answer, where=self.config.name)

    def request_for(self, body: Request) -> dict[str, Any]:
        """What the caller set, over the configured extras, for the configured model."""
        return {**self.config.extra_body, **body.model_dump(exclude_unset=True), "model": self.config.openai_model}

    async def ask(self, dialect: Literal["responses", "chat"], request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return the endpoint's answer as it came."""
        if dialect == "responses":
            return await self._client.create_response(**request)
        return await self._client.create_chat_completion(**request)


if __name__ == "__main__":
    SimpleModelServer.run_webserver()
