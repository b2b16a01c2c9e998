"""The OpenAI Responses API: items of a conversation, request, response and token counts.

The class of an item is chosen by its `type` (and for messages by their form); classes are not tried in turn.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator
from pydantic_core import PydanticCustomError

from nemo_gym.wire.base import (
    TEXT_OR_LIST,
    AcceptObjects,
    ItemModel,
    ItemStatus,
    Json,
    TaggedUnion,
    TokenIDLogProbMixin,
    TypedObject,
    WireModel,
    check_token_fields,
    dump_object,
    field_text,
    has_token_fields,
    later_field,
    omit_none,
)
from nemo_gym.wire.hosted_tool_calls import HOSTED_ITEMS, PROVIDER_ITEM_TYPES, HostedItem, ProviderItem
from nemo_gym.wire.input_content import InputContent, InputContentPart
from nemo_gym.wire.responses_options import (
    Prompt,
    PromptParam,
    Reasoning,
    ReasoningParam,
    TextConfig,
    TextConfigParam,
    Tool,
    ToolChoiceMode,
    ToolChoiceParam,
    ToolParam,
)
from nemo_gym.wire.token_usage import NeMoGymResponseUsage

LaterOption = Annotated[Json, Field(exclude_if=omit_none)]
LaterText = Annotated[str | None, Field(exclude_if=omit_none)]
"""Fields that the API added later; a dump contains them only if they are set."""


class TopLogprob(WireModel):
    token: str
    bytes: list[int]
    logprob: float


class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class NeMoGymResponseOutputText(WireModel):
    annotations: list[TypedObject] = []
    text: str
    type: Literal["output_text"] = "output_text"
    logprobs: list[Logprob] | None = None


class NeMoGymResponseOutputRefusal(WireModel):
    refusal: str
    type: Literal["refusal"] = "refusal"


def _with_part_type(part: Any) -> Any:
    """Add the type that the fields imply to a part without `type`, as in older datasets."""
    if isinstance(part, dict) and "type" not in part:
        return {**part, "type": "refusal" if "refusal" in part else "output_text"}
    return part


OutputContentPart = Annotated[
    NeMoGymResponseOutputText | NeMoGymResponseOutputRefusal, TaggedUnion(), BeforeValidator(_with_part_type)
]


class NeMoGymSummary(WireModel):
    text: str
    type: Literal["summary_text"] = "summary_text"


class NeMoGymReasoningText(WireModel):
    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class NeMoGymEasyInputMessage(ItemModel):
    """A message in its short form: a role and a content."""

    wire_tag: ClassVar[str] = "easy_message"
    tagged_by: ClassVar[frozenset[str]] = frozenset()

    content: InputContent
    role: Literal["user", "assistant", "system", "developer"]
    type: Literal["message"] = "message"
    phase = later_field("phase")  # type: ignore[pydantic-field]  # a property, no field
    """`commentary` or `final_answer` for a message of the model; None if it does not say."""


class NeMoGymMessage(ItemModel):
    """An input message as the API stores it: a list of parts with a status."""

    wire_tag: ClassVar[str] = "message"
    tagged_by: ClassVar[frozenset[str]] = frozenset({"status", "type"})

    content: list[InputContentPart]
    role: Literal["user", "system", "developer"]
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"


class NeMoGymResponseOutputMessage(ItemModel):
    """A message of the model."""

    wire_tag: ClassVar[str] = "output_message"

    id: str
    content: list[OutputContentPart]
    role: Literal["assistant"] = "assistant"
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"
    phase = later_field("phase")  # type: ignore[pydantic-field]  # a property, no field
    """`commentary` or `final_answer` for a message of the model; None if it does not say."""


class NeMoGymResponseFunctionToolCall(ItemModel):
    arguments: str
    call_id: str
    name: str
    type: Literal["function_call"] = "function_call"
    id: str | None = None
    status: ItemStatus | None = None
    namespace = later_field("namespace")  # type: ignore[pydantic-field]  # a property, no field
    """The namespace of the tool; None without one."""


class NeMoGymFunctionCallOutput(ItemModel):
    call_id: str
    output: InputContent
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: ItemStatus | None = None


NeMoGymResponseFunctionCallOutput = NeMoGymFunctionCallOutput
"""The result of a call in a response; the same class, because it has the same fields."""


class NeMoGymResponseReasoningItem(ItemModel):
    """Reasoning of the model. Unknown fields and `status` are dropped: some endpoints reject them in their input."""

    model_config = ConfigDict(extra="ignore")

    id: str
    summary: list[NeMoGymSummary]
    type: Literal["reasoning"] = "reasoning"
    encrypted_content: str | None = None
    content: list[NeMoGymReasoningText] | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_objects(cls, value: Any) -> Any:
        value = value if type(value) is dict else dump_object(value)
        if isinstance(value, dict) and "status" in value:
            return {name: field for name, field in value.items() if name != "status"}
        return value


class AnonymousReasoningItem(ItemModel):
    """Reasoning that a client sends back without its id, because it does not store answers at the provider."""

    wire_tag: ClassVar[str] = "anonymous_reasoning"

    summary: list[NeMoGymSummary] = []
    type: Literal["reasoning"] = "reasoning"
    encrypted_content: str | None = None
    content: list[NeMoGymReasoningText] | None = None


class NeMoGymEasyInputMessageForTraining(NeMoGymEasyInputMessage, TokenIDLogProbMixin):
    pass


class NeMoGymMessageForTraining(NeMoGymMessage, TokenIDLogProbMixin):
    pass


class NeMoGymResponseOutputMessageForTraining(NeMoGymResponseOutputMessage, TokenIDLogProbMixin):
    pass


class NeMoGymResponseFunctionToolCallForTraining(NeMoGymResponseFunctionToolCall, TokenIDLogProbMixin):
    pass


class NeMoGymResponseReasoningItemForTraining(NeMoGymResponseReasoningItem, TokenIDLogProbMixin):
    """Reasoning with token fields; other fields about the generation are kept."""

    model_config = ConfigDict(extra="allow")


RESPONSES_TO_TRAIN: dict[type[ItemModel], type[ItemModel]] = {
    NeMoGymEasyInputMessage: NeMoGymEasyInputMessageForTraining,
    NeMoGymMessage: NeMoGymMessageForTraining,
    NeMoGymResponseOutputMessage: NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseFunctionToolCall: NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseReasoningItem: NeMoGymResponseReasoningItemForTraining,
}


def training_variant_of(item_class: type[ItemModel]) -> type[ItemModel]:
    """Return the class that adds token fields to `item_class`.

    Raises:
        NotImplementedError: items of this class are never generated token by token.
    """
    try:
        return RESPONSES_TO_TRAIN[item_class]
    except KeyError:
        raise NotImplementedError(f"{item_class.__name__} has no training variant") from None


_TRAINABLE_TAGS = frozenset(cls.wire_tag for cls in RESPONSES_TO_TRAIN)
_PASSED_ON_TYPES = PROVIDER_ITEM_TYPES | {"item_reference"}
"""Items of the input that only an endpoint of the Responses API understands."""
_INPUT_TYPES = (
    frozenset({"message", "function_call", "function_call_output", "reasoning"})
    | {cls.wire_tag for cls in HOSTED_ITEMS}
    | _PASSED_ON_TYPES
)
_IMPLIED_FIELDS: tuple[tuple[frozenset[str], dict[str, str]], ...] = (
    (frozenset({"call_id", "output"}), {"type": "function_call_output"}),
    (frozenset({"call_id", "name", "arguments"}), {"type": "function_call"}),
    (frozenset({"id", "summary"}), {"type": "reasoning"}),
    (frozenset({"id", "content"}), {"type": "message", "role": "assistant"}),
)
"""Fields of an item without `type` and `role`, and the missing fields that they imply; the first match counts."""
_OUTPUT_TYPES = _INPUT_TYPES - {"item_reference"}


def _is_generated(content: list[Any]) -> bool:
    """Return True if the content of an assistant message is empty or begins with an output text or a refusal."""
    return not content or field_text(_with_part_type(content[0]), "type") in ("output_text", "refusal")


def _message_tag(message: Mapping[str, Any]) -> str:
    """Return the form of a message: generated by the model, stored with a status, or short."""
    content = message.get("content")
    if isinstance(content, list):
        if message.get("role") == "assistant":
            if message.get("id") is not None and _is_generated(content):
                return "output_message"
        elif message.get("status") is not None:
            return "message"
    return "easy_message"


def item_tag(item: Any) -> str | None:
    """Return the tag of the class that `item` belongs to."""
    if not isinstance(item, dict):
        return getattr(item, "wire_tag", None)
    item_type = item.get("type")
    tag = _message_tag(item) if item_type is None or item_type == "message" else item_type
    if tag == "reasoning" and item.get("id") is None:
        return "anonymous_reasoning"
    if tag in _TRAINABLE_TAGS and has_token_fields(item):
        return f"{tag}+tokens"
    return "provider_item" if tag in _PASSED_ON_TYPES else tag


def _as_item(item: Any) -> Any:
    """Return an item as an object of an item class or as a dictionary; dump objects of other classes."""
    if type(item) is dict:
        return item
    if isinstance(item, BaseModel):
        # An item may have token fields as extras; dumped and validated again, it becomes an object of a training class.
        has_extra_tokens = item.model_extra and has_token_fields(item.model_extra)
        return dump_object(item) if has_extra_tokens or not isinstance(item, ItemModel) else item
    if isinstance(item, Mapping):
        return dict(item)
    raise PydanticCustomError("item_type", "An item must be an object")


def _check_item(item: dict[str, Any], types: frozenset[str]) -> None:
    """Check the `type` of an item, if it has one, and its token fields."""
    item_type = item.get("type")
    if item_type is not None:
        if not isinstance(item_type, str):
            raise PydanticCustomError("unknown_item_type", "The type of an item must be a text")
        if item_type not in types:
            raise PydanticCustomError("unknown_item_type", "Unknown item type {type}", {"type": repr(item_type[:80])})
    check_token_fields(item)


def _with_type(item: dict[str, Any]) -> dict[str, Any]:
    """Add the type that the fields imply to an item without `type` and `role`, as in older datasets."""
    for fields, implied_fields in _IMPLIED_FIELDS:
        if fields <= item.keys():
            return {**item, **implied_fields}
    if item.keys() == {"id"}:
        return {**item, "type": "item_reference"}
    raise PydanticCustomError("missing_item_type", "An item must have `type`, or `role` and `content`")


def check_input_item(item: Any) -> Any:
    """Check an item of `input` and return it in a form for which `item_tag` can determine the class."""
    item = _as_item(item)
    if type(item) is dict:
        if item.get("type") is None and "role" not in item:
            item = _with_type(item)
        _check_item(item, _INPUT_TYPES)
    return item


def check_output_item(item: Any) -> Any:
    """Check an item of `output`, which must have a type, and return it as an object or dictionary."""
    item = _as_item(item)
    if type(item) is dict:
        item_type = item.get("type")
        if item_type is None:
            raise PydanticCustomError("missing_item_type", "Each output item must have `type`")
        if item_type == "message" and item.get("role") is None:
            item = {**item, "role": "assistant"}  # some endpoints leave it empty: only the model writes the output
        _check_item(item, _OUTPUT_TYPES)
    return item


_Item: TypeAlias = (
    NeMoGymEasyInputMessage
    | NeMoGymEasyInputMessageForTraining
    | NeMoGymMessage
    | NeMoGymMessageForTraining
    | NeMoGymResponseOutputMessage
    | NeMoGymResponseOutputMessageForTraining
    | NeMoGymResponseFunctionToolCall
    | NeMoGymResponseFunctionToolCallForTraining
    | NeMoGymFunctionCallOutput
    | NeMoGymResponseReasoningItem
    | NeMoGymResponseReasoningItemForTraining
    | HostedItem
)
_BY_WIRE_TAG = TaggedUnion(tag=item_tag, member_tags=lambda member: (member.wire_tag,))

NeMoGymResponseInputItem = Annotated[
    _Item | ProviderItem | AnonymousReasoningItem, _BY_WIRE_TAG, BeforeValidator(check_input_item)
]
NeMoGymResponseOutputItem = Annotated[_Item | ProviderItem, _BY_WIRE_TAG, BeforeValidator(check_output_item)]
NeMoGymResponseInput = list[NeMoGymResponseInputItem]
TextOrItems = Annotated[str | NeMoGymResponseInput, TEXT_OR_LIST]


class NeMoGymResponseCreateParamsNonStreaming(WireModel):
    """A request for one response. An unknown field is an error, because it would not reach the model."""

    model_config = ConfigDict(defer_build=True, extra="forbid")

    background: bool | None = None
    include: list[str] | None = None
    input: TextOrItems
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    prompt: Annotated[PromptParam, AcceptObjects] | None = None
    reasoning: Annotated[ReasoningParam, AcceptObjects] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    store: bool | None = None
    temperature: float | None = None
    text: Annotated[TextConfigParam, AcceptObjects] | None = None
    tool_choice: ToolChoiceParam = "auto"
    tools: list[ToolParam] = []
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    stream: Literal[False] | None = None
    context_management: LaterOption = None
    conversation: LaterOption = None
    moderation: LaterOption = None
    prompt_cache_key: LaterText = None
    prompt_cache_retention: LaterText = None
    safety_identifier: LaterText = None
    stream_options: LaterOption = None


class ResponseError(WireModel):
    code: str
    message: str


CONTEXT_LENGTH = "context_length"
"""The limit of an answer that was not begun because its prompt does not fit into the model's context."""


class IncompleteDetails(WireModel):
    """Why an answer is incomplete. Our model servers add `which: context_length` if the prompt did not fit."""

    reason: str | None = None

    @property
    def limit_name(self) -> str | None:
        """The limit that ended the episode; None if the model was only cut off."""
        name = (self.model_extra or {}).get("which")
        return name if isinstance(name, str) else None


class ConversationRef(WireModel):
    id: str


class NeMoGymResponse(WireModel):
    """The response of a model: its output items and the options of the request."""

    model_config = ConfigDict(defer_build=True)

    id: str
    created_at: FiniteFloat
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: TextOrItems | None = None
    metadata: dict[str, str] | None = None
    model: str
    object: Literal["response"]
    output: list[NeMoGymResponseOutputItem]
    parallel_tool_calls: bool
    temperature: float | None = None
    tool_choice: ToolChoiceMode | TypedObject
    tools: list[Tool]
    top_p: float | None = None
    background: bool | None = None
    conversation: ConversationRef | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    previous_response_id: str | None = None
    prompt: Prompt | None = None
    prompt_cache_key: str | None = None
    reasoning: Reasoning | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    status: Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"] | None = None
    text: TextConfig | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    usage: NeMoGymResponseUsage | None = None
    user: str | None = None

    @property
    def output_text(self) -> str:
        """The texts of all messages of the model, joined without separators."""
        return "".join(text for item in self.output for text in _message_texts(item))


def _message_texts(item: object) -> list[str]:
    """Return the texts of a message of the model; empty for any other item."""
    if isinstance(item, NeMoGymResponseOutputMessage):
        return [part.text for part in item.content if isinstance(part, NeMoGymResponseOutputText)]
    if isinstance(item, NeMoGymEasyInputMessage) and item.role == "assistant":
        if isinstance(item.content, str):
            return [item.content]
        return [part["text"] for part in item.content if part["type"] == "output_text"]
    return []
