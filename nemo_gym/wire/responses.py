"""The Responses API: request and response."""

from typing import Annotated, Literal

from pydantic import ConfigDict

from nemo_gym.wire.base import OpenForeign, WireModel
from nemo_gym.wire.content_parts import NeMoGymResponseOutputText
from nemo_gym.wire.items import NeMoGymEasyInputMessage, NeMoGymResponseOutputMessage
from nemo_gym.wire.tools import (
    NamedToolChoice,
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
from nemo_gym.wire.unions import NeMoGymResponseOutputItem, TextOrItems
from nemo_gym.wire.usage import NeMoGymResponseUsage


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
    prompt: Annotated[PromptParam, OpenForeign] | None = None
    reasoning: Annotated[ReasoningParam, OpenForeign] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    store: bool | None = None
    temperature: float | None = None
    text: Annotated[TextConfigParam, OpenForeign] | None = None
    tool_choice: ToolChoiceParam = "auto"
    tools: list[ToolParam] = []
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    stream: Literal[False] | None = None


class ResponseError(WireModel):
    code: str
    message: str


class IncompleteDetails(WireModel):
    reason: str | None = None


class ConversationRef(WireModel):
    id: str


class NeMoGymResponse(WireModel):
    """The response of a model: its output items and the options of the request."""

    model_config = ConfigDict(defer_build=True)

    id: str
    created_at: float
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: TextOrItems | None = None
    metadata: dict[str, str] | None = None
    model: str
    object: Literal["response"]
    output: list[NeMoGymResponseOutputItem]
    parallel_tool_calls: bool
    temperature: float | None = None
    tool_choice: ToolChoiceMode | NamedToolChoice
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
        """The text of all messages of the model, joined without separators."""
        return "".join(text for item in self.output for text in _message_texts(item))


def _message_texts(item: object) -> list[str]:
    if isinstance(item, NeMoGymResponseOutputMessage):
        return [part.text for part in item.content if isinstance(part, NeMoGymResponseOutputText)]
    if isinstance(item, NeMoGymEasyInputMessage) and item.role == "assistant":
        if isinstance(item.content, str):
            return [item.content]
        return [part["text"] for part in item.content if part["type"] == "output_text"]
    return []
