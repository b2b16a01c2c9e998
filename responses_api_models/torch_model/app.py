"""Torch model: the model that a trainer serves from its own process with `nemo_gym.training.serve_policy`.

This server imports no torch. It converts between the dialects and the engine's chat endpoint; the engine keeps the
token ids of earlier turns, samples, and parses tool calls.
"""

from collections.abc import Mapping
from typing import Any

from aiohttp import ClientResponseError
from fastapi import HTTPException
from pydantic import ConfigDict, Field, PrivateAttr

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.errors import ModelFailed
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.serve.chat_engines import empty_completion, first_choice, is_too_long, settings_in_metadata
from nemo_gym.transport.model_client import PacedOpenAI, validate_answer
from nemo_gym.wire.base import GENERATION_FIELDS, REQUIRED_TOKEN_FIELDS, TOKEN_FIELDS

Json = dict[str, Any]

ENGINE_FIELDS = (
    "messages", "tools", "tool_choice", "response_format", "temperature", "top_p", "max_completion_tokens",
    "max_tokens", "seed", "n",
)  # fmt: skip
"""Fields of a chat request that the engine reads."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (0, -1), "min_p": (0,), "frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,),
    "logit_bias": ({},), "stop": ("", []),
}  # fmt: skip
"""Options of sampling that the engine does not have, and their values that change nothing."""


class TorchModelConfig(BaseResponsesAPIModelConfig):
    base_url: str
    """The endpoint of the policy, up to and including `/v1`."""
    api_key: str
    """The bearer token of the policy."""
    model: str = "policy"
    """Model name in every reply."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Default for requests without one; unset: the engine's default."""
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Concurrent requests to the engine in the whole run; unlimited if unset."""


class TorchChatParams(NeMoGymChatCompletionCreateParamsNonStreaming):
    """A chat request with its unknown fields, so that options which the engine does not have are refused."""

    model_config = ConfigDict(extra="allow")


class TorchModel(SimpleResponsesAPIModel):
    HOSTING = "cell"
    PASSES_ENGINE_OPTIONS = True
    REPORTS_EVERY_COUNT = True

    config: TorchModelConfig
    _client: PacedOpenAI = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._client = PacedOpenAI(
            name=self.config.name,
            base_url=self.config.base_url,
            api_key=self.config.api_key,
            max_concurrent_requests=self.config.max_concurrent_requests,
        )

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        converter = ResponsesConverter(
            return_token_id_information=True, uses_reasoning_parser=False, server_name=self.config.name
        )
        chat = converter.responses_to_chat_completion_create_params(body)
        completion = await self.chat_completions(TorchChatParams.model_validate(chat))
        named = body.model_copy(update={"model": self.config.model})
        return converter.chat_completion_to_response(named, completion)

    async def chat_completions(  # type: ignore[override]  # every request of the base class is one of these
        self, body: TorchChatParams = Body()
    ) -> NeMoGymChatCompletion:
        if body.logprobs:
            raise HTTPException(400, "logprobs: every reply of this model has the fields generation_log_probs instead")
        try:
            reply = await self._client.create_chat_completion(**self.engine_request(body))
        except ClientResponseError as refusal:
            if is_too_long(refusal):
                return NeMoGymChatCompletion.model_validate(empty_completion(self.config.model))
            raise
        check_token_fields(first_choice(reply, self.config.name)["message"], self.config.name)
        return validate_answer(NeMoGymChatCompletion, reply, callee=self.config.name)

    def engine_request(self, body: TorchChatParams) -> Json:
        """Build the request for the engine: only the last turn of the model carries its token ids.

        Raises:
            HTTPException: 400, an option is set that the engine does not have.
        """
        chat = body.model_dump(exclude_unset=True)
        extra, _, _ = settings_in_metadata(chat.get("metadata") or {})
        chat = {**chat, **extra}
        refuse_options(chat)
        request = {name: chat[name] for name in ENGINE_FIELDS if chat.get(name) is not None}
        if not request.keys() & {"max_completion_tokens", "max_tokens"} and self.config.max_output_tokens:
            request["max_completion_tokens"] = self.config.max_output_tokens
        return {**request, "model": self.config.model, "messages": with_last_ids_only(chat["messages"])}


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse options of sampling that the engine does not have.

    Raises:
        HTTPException: 400, with the name of the option.
    """
    for name, neutral in NEUTRAL.items():
        if options.get(name) not in (None, *neutral):
            raise HTTPException(400, f"{name}: this model samples with a temperature only, so leave it unset")


def with_last_ids_only(messages: list[Json]) -> list[Json]:
    """Remove the token fields from all messages but the last that has them: its ids contain the earlier ones."""
    with_ids = [index for index, message in enumerate(messages) if message.get("generation_token_ids")]
    unused = (*TOKEN_FIELDS, *GENERATION_FIELDS)
    return [
        message if index in with_ids[-1:] else {key: value for key, value in message.items() if key not in unused}
        for index, message in enumerate(messages)
    ]


def check_token_fields(message: Json, where: str) -> None:
    """Check that a reply has all token fields, with one log-prob for each token.

    Raises:
        ModelFailed: it has not, so a trainer could not use it.
    """
    missing = [name for name in REQUIRED_TOKEN_FIELDS if not isinstance(message.get(name), list)]
    if missing:
        fix = "start the endpoint with nemo_gym.training.serve_policy"
        raise ModelFailed(f"the endpoint's reply has no {', '.join(missing)}", where=where, fix=fix)
    ids, log_probs = message["generation_token_ids"], message["generation_log_probs"]
    if not ids or len(ids) != len(log_probs):
        raise ModelFailed(f"the endpoint gave {len(ids)} token ids and {len(log_probs)} log-probs", where=where)


if __name__ == "__main__":
    TorchModel.run_webserver()
