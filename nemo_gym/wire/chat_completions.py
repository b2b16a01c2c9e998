"""Chat Completions: request and reply.

In a request, messages and content parts are dictionaries, as users of the API write them; in a reply they are objects.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from nemo_gym.wire.base import (
    TEXT_OR_LIST,
    AcceptObjects,
    Json,
    JsonObject,
    LogProbs,
    OpenDict,
    TaggedUnion,
    TokenIDLogProbMixin,
    TokenIds,
    TypedObjectParam,
    WireModel,
    check_token_fields,
    dump_object,
    has_token_fields,
    literal_tags,
    omit_none,
)


class NeMoGymChatCompletionContentPartTextParam(OpenDict):
    text: str
    type: Literal["text"]


class ImageURL(OpenDict):
    url: str
    detail: NotRequired[Literal["auto", "low", "high", "original"]]


class NeMoGymChatCompletionContentPartImageParam(OpenDict):
    image_url: ImageURL
    type: Literal["image_url"]


class InputAudio(OpenDict):
    data: str
    format: str


class NeMoGymChatCompletionContentPartInputAudioParam(OpenDict):
    input_audio: InputAudio
    type: Literal["input_audio"]


class AttachedFile(OpenDict):
    file_data: NotRequired[str]
    file_id: NotRequired[str]
    filename: NotRequired[str]


class NeMoGymChatCompletionContentPartFileParam(OpenDict):
    file: AttachedFile
    type: Literal["file"]


class VideoURL(OpenDict):
    url: str


class NeMoGymChatCompletionContentPartVideoParam(OpenDict):
    """An extension of vLLM and other servers."""

    type: Literal["video_url"]
    video_url: VideoURL


class NeMoGymChatCompletionContentPartRefusalParam(OpenDict):
    refusal: str
    type: Literal["refusal"]


NeMoGymChatCompletionContentPartParam = Annotated[
    NeMoGymChatCompletionContentPartTextParam
    | NeMoGymChatCompletionContentPartImageParam
    | NeMoGymChatCompletionContentPartInputAudioParam
    | NeMoGymChatCompletionContentPartFileParam
    | NeMoGymChatCompletionContentPartVideoParam
    | NeMoGymChatCompletionContentPartRefusalParam,
    TaggedUnion(),
    AcceptObjects,
]
ChatContent = Annotated[str | list[NeMoGymChatCompletionContentPartParam], TEXT_OR_LIST]


class NeMoGymChatCompletionMessageToolCallFunctionParam(OpenDict):
    arguments: str
    name: str


class NeMoGymChatCompletionMessageToolCallParam(OpenDict):
    id: str
    function: NeMoGymChatCompletionMessageToolCallFunctionParam
    type: Literal["function"]


class CustomToolCallInputParam(OpenDict):
    input: str
    name: str


class NeMoGymChatCompletionMessageCustomToolCallParam(OpenDict):
    id: str
    custom: CustomToolCallInputParam
    type: Literal["custom"]


ToolCallParam = Annotated[
    NeMoGymChatCompletionMessageToolCallParam | NeMoGymChatCompletionMessageCustomToolCallParam,
    TaggedUnion(),
    AcceptObjects,
]


class NeMoGymChatCompletionDeveloperMessageParam(OpenDict):
    content: ChatContent
    role: Literal["developer"]
    name: NotRequired[str]


class NeMoGymChatCompletionSystemMessageParam(OpenDict):
    content: ChatContent
    role: Literal["system"]
    name: NotRequired[str]


class NeMoGymChatCompletionUserMessageParam(OpenDict):
    content: ChatContent
    role: Literal["user"]
    name: NotRequired[str]


class NeMoGymChatCompletionToolMessageParam(OpenDict):
    content: ChatContent
    role: Literal["tool"]
    tool_call_id: str


class NeMoGymChatCompletionAssistantMessageParam(OpenDict):
    """An earlier message of the model. Fields that only some servers have (`reasoning_content`) are kept."""

    role: Literal["assistant"]
    audio: NotRequired[Json]
    content: NotRequired[ChatContent | None]
    function_call: NotRequired[Json]
    name: NotRequired[str | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCallParam] | None]


class NeMoGymChatCompletionAssistantMessageForTrainingParam(NeMoGymChatCompletionAssistantMessageParam):
    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs
    routed_experts: NotRequired[str | list[Json] | None]


def _class_tags(member: Any) -> tuple[str, ...]:
    """Return the tags of a message class: its roles, with a suffix if it has token fields."""
    suffix = "+tokens" if "prompt_token_ids" in member.__annotations__ else ""
    return tuple(f"{role}{suffix}" for role in literal_tags(member, "role"))


def _message_tag(message: Any) -> str | None:
    """Return the tag of a message: its role, with a suffix if an assistant message has token fields."""
    if not isinstance(message, Mapping):
        return None
    role = message.get("role")
    if role == "assistant" and has_token_fields(message):
        return "assistant+tokens"
    return role if isinstance(role, str) else None


def _check_message(message: Any) -> Any:
    """Return a message of a request as a mapping; raise an error if its token fields are incomplete."""
    message = dump_object(message)
    if not isinstance(message, Mapping):
        raise PydanticCustomError("message_type", "A message must be an object")
    check_token_fields(message)
    return message


NeMoGymChatCompletionMessageParam = Annotated[
    NeMoGymChatCompletionDeveloperMessageParam
    | NeMoGymChatCompletionSystemMessageParam
    | NeMoGymChatCompletionUserMessageParam
    | NeMoGymChatCompletionAssistantMessageParam
    | NeMoGymChatCompletionAssistantMessageForTrainingParam
    | NeMoGymChatCompletionToolMessageParam,
    TaggedUnion(tag=_message_tag, member_tags=_class_tags),
    BeforeValidator(_check_message),
]


class NeMoGymFunctionDefinition(OpenDict):
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[JsonObject | None]
    strict: NotRequired[bool | None]


class NeMoGymChatCompletionToolParam(OpenDict):
    function: NeMoGymFunctionDefinition
    type: Literal["function"]


class NeMoGymChatCompletionCustomToolParam(OpenDict):
    custom: Json
    type: Literal["custom"]


ChatToolParam = Annotated[
    NeMoGymChatCompletionToolParam | NeMoGymChatCompletionCustomToolParam,
    TaggedUnion(),
    AcceptObjects,
]


class NeMoGymChatCompletionCreateParamsNonStreaming(WireModel):
    """A request for one chat completion. Unknown fields are dropped, because chat servers differ in them."""

    model_config = ConfigDict(defer_build=True, extra="ignore")

    messages: list[NeMoGymChatCompletionMessageParam]
    model: str | None = None
    audio: Json = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, int] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    metadata: dict[str, str] | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    n: int | None = None
    parallel_tool_calls: bool | None = True
    prediction: Json = None
    presence_penalty: float | None = None
    reasoning_effort: str | None = None
    response_format: Annotated[TypedObjectParam, AcceptObjects] | None = None
    seed: int | None = None
    service_tier: str | None = None
    stop: str | list[str] | None = None
    store: bool | None = None
    stream: Literal[False] | None = None
    stream_options: Json = None
    temperature: float | None = None
    tool_choice: Literal["none", "auto", "required"] | Annotated[TypedObjectParam, AcceptObjects] | None = None
    tools: list[ChatToolParam] | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    user: str | None = None
    web_search_options: Json = None
    # A dump contains the options below only if they are set: deprecated, added later, or of some providers.
    function_call: Annotated[Json, Field(exclude_if=omit_none)] = None
    functions: Annotated[list[JsonObject] | None, Field(exclude_if=omit_none)] = None
    moderation: Annotated[Json, Field(exclude_if=omit_none)] = None
    prompt_cache_key: Annotated[str | None, Field(exclude_if=omit_none)] = None
    prompt_cache_retention: Annotated[str | None, Field(exclude_if=omit_none)] = None
    safety_identifier: Annotated[str | None, Field(exclude_if=omit_none)] = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, Field(exclude_if=omit_none)] = None
    chat_template_kwargs: Annotated[JsonObject | None, Field(exclude_if=omit_none)] = None
    thinking: Annotated[Json, Field(exclude_if=omit_none)] = None
    output_config: Annotated[Json, Field(exclude_if=omit_none)] = None


CHAT_REQUEST_PROVIDER_EXTENSION_FIELDS = frozenset({"chat_template_kwargs", "thinking", "output_config"})
"""Fields of a chat request that only some providers have."""


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
    """The message of the model. Fields that only some servers have (`reasoning_content`) are kept as extras."""

    content: str | None = None
    refusal: str | None = None
    role: Literal["assistant"] = "assistant"
    annotations: list[Json] | None = None
    audio: Json = None
    function_call: NeMoGymFunction | None = None
    tool_calls: list[ChatToolCall] | None = None


class NeMoGymChatCompletionMessageForTraining(NeMoGymChatCompletionMessage, TokenIDLogProbMixin):
    pass


def _check_reply_message(message: Any) -> Any:
    """Check the token fields of the model's message in a reply; dump objects of other packages to dictionaries."""
    if isinstance(message, BaseModel) and not isinstance(message, NeMoGymChatCompletionMessage):
        message = dump_object(message)
    if isinstance(message, Mapping):
        check_token_fields(message)
        if "role" in message and message["role"] is None:
            message = {**message, "role": "assistant"}  # some endpoints leave it empty: only the model writes replies
    return message


def _reply_tag(message: Any) -> str:
    """Return the tag of the model's message: "True" if it has token fields, else "False"."""
    if isinstance(message, Mapping):
        return str(has_token_fields(message))
    return str(isinstance(message, TokenIDLogProbMixin))


class ChoiceLogprobs(WireModel):
    content: list[Json] | None = None
    refusal: list[Json] | None = None


class NeMoGymChoice(WireModel):
    finish_reason: str
    index: int
    logprobs: ChoiceLogprobs | None = None
    message: Annotated[
        NeMoGymChatCompletionMessage | NeMoGymChatCompletionMessageForTraining,
        TaggedUnion(tag=_reply_tag, member_tags=lambda member: (str(issubclass(member, TokenIDLogProbMixin)),)),
        BeforeValidator(_check_reply_message),
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
