"""Chat Completions model: any OpenAI-compatible endpoint behind the Responses API.

OpenRouter, Ollama, llama.cpp, SGLang, TGI, LM Studio, Groq, Mistral, Gemini and others. Unlike `vllm_model` it sends
only fields that every such endpoint accepts, and keeps what a provider wants to see again.
"""

from functools import cached_property
from typing import Any

from pydantic import Field

from nemo_gym.authoring.chat_model import ChatModel, ChatModelConfig
from nemo_gym.serve.event_stream import Emit
from nemo_gym.transport.model_client import PacedOpenAI
from nemo_gym.transport.model_streams import stream_completion


class ChatCompletionsModelConfig(ChatModelConfig):
    base_url: str
    """Up to and including `/v1`."""
    api_key: str
    default_headers: dict[str, str] = {}
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Concurrent requests in the whole run; unlimited if unset. Refusals (429, 503) lower it temporarily."""


class ChatCompletionsModel(ChatModel):
    """Forwards chat requests to an OpenAI-compatible endpoint."""

    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # no state between requests, so no session cookie
    REPORTS_EVERY_COUNT = True

    config: ChatCompletionsModelConfig

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        _ = self._client  # created at start, so that a wrong configuration is reported before the first request

    @cached_property  # faster than a private attribute of pydantic
    def _client(self) -> PacedOpenAI:
        return PacedOpenAI(
            name=self.config.name,
            base_url=self.config.base_url,
            api_key=self.config.api_key,
            default_headers=self.config.default_headers,
            max_concurrent_requests=self.config.max_concurrent_requests,
        )

    async def complete(self, payload: dict[str, Any]) -> dict[str, Any]:
        return await self._client.create_chat_completion(**payload)

    async def stream(self, payload: dict[str, Any], emit: Emit) -> dict[str, Any]:
        streamed = {**payload, "stream": True, "stream_options": {"include_usage": True}}
        return await stream_completion(self._client, streamed, emit, self.config.name)


if __name__ == "__main__":
    ChatCompletionsModel.run_webserver()
