"""Chat Completions: the request. Messages and content parts are dictionaries, as users of the API write them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from nemo_gym.wire.base import (
    TEXT_OR_LIST,
    Json,
    JsonObject,
    OpenForeign,
    TaggedUnion,
    WireModel,
    as_plain,
    literal_tags,
    open_dict,
)
from nemo_gym.wire.tokens import LogProbs, TokenIds, check_token_fields, has_token_fields


@open_dict
class NeMoGymChatCompletionContentPartTextParam(TypedDict):
    text: str
    type: Literal["text"]


@open_dict
class ImageURL(TypedDict):
    url: str
    detail: NotRequired[Literal["auto", "low", "high", "original"]]


@open_dict
class NeMoGymChatCompletionContentPartImageParam(TypedDict):
    image_url: ImageURL
    type: Literal["image_url"]


@open_dict
class InputAudio(TypedDict):
    data: str
    format: str


@open_dict
class NeMoGymChatCompletionContentPartInputAudioParam(TypedDict):
    input_audio: InputAudio
    type: Literal["input_audio"]


@open_dict
class AttachedFile(TypedDict):
    file_data: NotRequired[str]
    file_id: NotRequired[str]
    filename: NotRequired[str]


@open_dict
class NeMoGymChatCompletionContentPartFileParam(TypedDict):
    file: AttachedFile
    type: Literal["file"]


@open_dict
class VideoURL(TypedDict):
    url: str


@open_dict
class NeMoGymChatCompletionContentPartVideoParam(TypedDict):
    """An extension of vLLM and other servers."""

    type: Literal["video_url"]
    video_url: VideoURL


@open_dict
class NeMoGymChatCompletionContentPartRefusalParam(TypedDict):
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
    OpenForeign,
]
ChatContent = Annotated[str | list[NeMoGymChatCompletionContentPartParam], TEXT_OR_LIST]


@open_dict
class NeMoGymChatCompletionMessageToolCallFunctionParam(TypedDict):
    arguments: str
    name: str


@open_dict
class NeMoGymChatCompletionMessageToolCallParam(TypedDict):
    id: str
    function: NeMoGymChatCompletionMessageToolCallFunctionParam
    type: Literal["function"]


@open_dict
class CustomToolCallInputParam(TypedDict):
    input: str
    name: str


@open_dict
class NeMoGymChatCompletionMessageCustomToolCallParam(TypedDict):
    id: str
    custom: CustomToolCallInputParam
    type: Literal["custom"]


ToolCallParam = Annotated[
    NeMoGymChatCompletionMessageToolCallParam | NeMoGymChatCompletionMessageCustomToolCallParam,
    TaggedUnion(),
    OpenForeign,
]


@open_dict
class NeMoGymChatCompletionDeveloperMessageParam(TypedDict):
    content: ChatContent
    role: Literal["developer"]
    name: NotRequired[str]


@open_dict
class NeMoGymChatCompletionSystemMessageParam(TypedDict):
    content: ChatContent
    role: Literal["system"]
    name: NotRequired[str]


@open_dict
class NeMoGymChatCompletionUserMessageParam(TypedDict):
    content: ChatContent
    role: Literal["user"]
    name: NotRequired[str]


@open_dict
class NeMoGymChatCompletionToolMessageParam(TypedDict):
    content: ChatContent
    role: Literal["tool"]
    tool_call_id: str


@open_dict
class NeMoGymChatCompletionAssistantMessageParam(TypedDict):
    """An earlier message of the model. Fields of single servers (`reasoning_content`) are kept."""

    role: Literal["assistant"]
    audio: NotRequired[Json]
    content: NotRequired[ChatContent | None]
    function_call: NotRequired[Json]
    name: NotRequired[str | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCallParam] | None]


@open_dict
class NeMoGymChatCompletionAssistantMessageForTrainingParam(NeMoGymChatCompletionAssistantMessageParam):
    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs
    routed_experts: NotRequired[str | list[Json] | None]


def _message_tags(member: Any) -> tuple[str, ...]:
    suffix = "+tokens" if "prompt_token_ids" in member.__annotations__ else ""
    return tuple(f"{role}{suffix}" for role in literal_tags(member, "role"))


def _message_tag(message: Any) -> str | None:
    """Return the role of a message, with a suffix if an assistant message has token fields."""
    if not isinstance(message, Mapping):
        return None
    role = message.get("role")
    if role == "assistant" and has_token_fields(message):
        return "assistant+tokens"
    return role if isinstance(role, str) else None


def _check_message(message: Any) -> Any:
    message = as_plain(message)
    if not isinstance(message, Mapping):
        raise PydanticCustomError("message_type", "A message must be an object")
    if has_token_fields(message):
        check_token_fields(message)
    return message


NeMoGymChatCompletionMessageParam = Annotated[
    NeMoGymChatCompletionDeveloperMessageParam
    | NeMoGymChatCompletionSystemMessageParam
    | NeMoGymChatCompletionUserMessageParam
    | NeMoGymChatCompletionAssistantMessageParam
    | NeMoGymChatCompletionAssistantMessageForTrainingParam
    | NeMoGymChatCompletionToolMessageParam,
    TaggedUnion(tag=_message_tag, member_tags=_message_tags),
    BeforeValidator(_check_message),
]


@open_dict
class NeMoGymFunctionDefinition(TypedDict):
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[JsonObject | None]
    strict: NotRequired[bool | None]


@open_dict
class NeMoGymChatCompletionToolParam(TypedDict):
    function: NeMoGymFunctionDefinition
    type: Literal["function"]


@open_dict
class NeMoGymChatCompletionCustomToolParam(TypedDict):
    custom: Json
    type: Literal["custom"]


ChatToolParam = Annotated[
    NeMoGymChatCompletionToolParam | NeMoGymChatCompletionCustomToolParam,
    TaggedUnion(),
    OpenForeign,
]


@open_dict
class TypedObject(TypedDict):
    """An option whose other fields depend on its `type`."""

    type: str


class NeMoGymChatCompletionCreateParamsNonStreaming(WireModel):
    """A request for one chat completion. Unknown fields are dropped, because chat servers differ in them."""

    model_config = ConfigDict(defer_build=True, extra="ignore")

    messages: list[NeMoGymChatCompletionMessageParam]
    model: str | None = None
    audio: Json = None
    frequency_penalty: float | None = None
    function_call: Json = None
    functions: list[JsonObject] | None = None
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
    prompt_cache_key: str | None = None
    reasoning_effort: str | None = None
    response_format: Annotated[TypedObject, OpenForeign] | None = None
    safety_identifier: str | None = None
    seed: int | None = None
    service_tier: str | None = None
    stop: str | list[str] | None = None
    store: bool | None = None
    stream: Literal[False] | None = None
    stream_options: Json = None
    temperature: float | None = None
    tool_choice: Literal["none", "auto", "required"] | Annotated[TypedObject, OpenForeign] | None = None
    tools: list[ChatToolParam] | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    user: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    web_search_options: Json = None
