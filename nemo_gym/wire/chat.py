"""Chat Completions: the reply."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator

from nemo_gym.wire.base import Json, TaggedUnion, WireModel, as_plain
from nemo_gym.wire.tokens import TokenIDLogProbMixin, check_token_fields, has_token_fields


class NeMoGymFunction(WireModel):
    arguments: str
    name: str


class NeMoGymChatCompletionMessageToolCall(WireModel):
    id: str
    function: NeMoGymFunction
    type: Literal["function"] = "function"


class CustomToolCallInput(WireModel):
    input: str
    name: str


class NeMoGymChatCompletionMessageCustomToolCall(WireModel):
    id: str
    custom: CustomToolCallInput
    type: Literal["custom"] = "custom"


ChatToolCall = Annotated[
    NeMoGymChatCompletionMessageToolCall | NeMoGymChatCompletionMessageCustomToolCall, TaggedUnion("function")
]


class NeMoGymChatCompletionMessage(WireModel):
    """The message of the model. Fields of single servers (`reasoning_content`) are kept as extras."""

    content: str | None = None
    refusal: str | None = None
    role: Literal["assistant"] = "assistant"
    annotations: list[Json] | None = None
    audio: Json = None
    function_call: NeMoGymFunction | None = None
    tool_calls: list[ChatToolCall] | None = None


class NeMoGymChatCompletionMessageForTraining(NeMoGymChatCompletionMessage, TokenIDLogProbMixin):
    pass


def _check_message(message: Any) -> Any:
    if isinstance(message, BaseModel) and not isinstance(message, NeMoGymChatCompletionMessage):
        message = as_plain(message)
    if isinstance(message, Mapping) and has_token_fields(message):
        check_token_fields(message)
    return message


def _message_tag(message: Any) -> str:
    """Return whether a message has token fields, as a tag."""
    is_mapping = isinstance(message, Mapping)
    return str(has_token_fields(message) if is_mapping else isinstance(message, TokenIDLogProbMixin))


class ChoiceLogprobs(WireModel):
    content: list[Json] | None = None
    refusal: list[Json] | None = None


class NeMoGymChoice(WireModel):
    finish_reason: str
    index: int
    logprobs: ChoiceLogprobs | None = None
    message: Annotated[
        NeMoGymChatCompletionMessage | NeMoGymChatCompletionMessageForTraining,
        TaggedUnion(tag=_message_tag, member_tags=lambda member: (str(issubclass(member, TokenIDLogProbMixin)),)),
        BeforeValidator(_check_message),
    ]


class CompletionTokensDetails(WireModel):
    accepted_prediction_tokens: int | None = None
    audio_tokens: int | None = None
    reasoning_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class PromptTokensDetails(WireModel):
    audio_tokens: int | None = None
    cached_tokens: int | None = None


class CompletionUsage(WireModel):
    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class NeMoGymChatCompletion(WireModel):
    id: str
    choices: list[NeMoGymChoice]
    created: int
    model: str
    object: Literal["chat.completion"]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: CompletionUsage | None = None
