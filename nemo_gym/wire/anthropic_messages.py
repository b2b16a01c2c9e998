"""The Anthropic Messages API: requests to `/v1/messages` and replies."""

from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict

from nemo_gym.wire.base import (
    OTHER,
    AcceptObjects,
    Json,
    JsonObject,
    OpenDict,
    TaggedUnion,
    TypedObject,
    TypedObjectParam,
    WireModel,
)


class TextBlockParam(OpenDict):
    text: str
    type: Literal["text"]
    cache_control: NotRequired[Json]
    citations: NotRequired[list[Json] | None]


class ImageBlockParam(OpenDict):
    source: JsonObject
    type: Literal["image"]
    cache_control: NotRequired[Json]


class ThinkingBlockParam(OpenDict):
    signature: NotRequired[str]
    thinking: str
    type: Literal["thinking"]


class ToolUseBlockParam(OpenDict):
    id: str
    input: JsonObject
    name: str
    type: Literal["tool_use"]
    cache_control: NotRequired[Json]


class ToolResultBlockParam(OpenDict):
    tool_use_id: str
    type: Literal["tool_result"]
    cache_control: NotRequired[Json]
    content: NotRequired[str | list[JsonObject] | None]
    is_error: NotRequired[bool | None]


BlockParam = Annotated[
    TextBlockParam | ImageBlockParam | ThinkingBlockParam | ToolUseBlockParam | ToolResultBlockParam | TypedObjectParam,
    TaggedUnion(OTHER),
    AcceptObjects,
]


class MessageParam(OpenDict):
    content: str | list[BlockParam]
    role: Literal["user", "assistant", "system"]


class AnthropicToolParam(OpenDict):
    """A tool of the client (no `type`, or "custom") with its schema, or a provider's tool by its type."""

    name: NotRequired[str]
    type: NotRequired[str | None]
    description: NotRequired[str | None]
    input_schema: NotRequired[JsonObject]
    cache_control: NotRequired[Json]


class AnthropicToolChoiceParam(OpenDict):
    type: Literal["auto", "any", "tool", "none"]
    name: NotRequired[str]
    disable_parallel_tool_use: NotRequired[bool]


class ThinkingConfigParam(OpenDict):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: NotRequired[int]


class NeMoGymAnthropicMessageCreateParamsNonStreaming(WireModel):
    """A request for one message. An unknown field is an error, because it would not reach the model."""

    model_config = ConfigDict(defer_build=True, extra="forbid")

    max_tokens: int
    messages: list[Annotated[MessageParam, AcceptObjects]]
    model: str
    cache_control: Json = None
    container: Json = None
    context_management: Json = None
    inference_geo: str | None = None
    mcp_servers: list[JsonObject] | None = None
    metadata: JsonObject | None = None
    output_config: JsonObject | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: str | None = None
    stop_sequences: list[str] | None = None
    system: str | list[Annotated[TextBlockParam, AcceptObjects]] | None = None
    temperature: float | None = None
    thinking: Annotated[ThinkingConfigParam, AcceptObjects] | None = None
    tool_choice: Annotated[AnthropicToolChoiceParam, AcceptObjects] | None = None
    tools: list[Annotated[AnthropicToolParam, AcceptObjects]] | None = None
    top_k: int | None = None
    top_p: float | None = None
    stream: Literal[False] | None = None


class TextBlock(WireModel):
    citations: list[Json] | None = None
    text: str
    type: Literal["text"] = "text"


class ThinkingBlock(WireModel):
    signature: str
    thinking: str
    type: Literal["thinking"] = "thinking"


class RedactedThinkingBlock(WireModel):
    data: str
    type: Literal["redacted_thinking"] = "redacted_thinking"


class ToolUseBlock(WireModel):
    id: str
    input: JsonObject
    name: str
    type: Literal["tool_use"] = "tool_use"


Block = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | TypedObject,
    TaggedUnion(OTHER),
]


class AnthropicUsage(WireModel):
    cache_creation: Json = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    input_tokens: int
    output_tokens: int
    server_tool_use: Json = None
    service_tier: str | None = None


class NeMoGymAnthropicMessage(WireModel):
    id: str
    content: list[Block]
    model: str
    role: Literal["assistant"] = "assistant"
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    usage: AnthropicUsage
