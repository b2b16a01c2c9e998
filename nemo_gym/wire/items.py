"""Items of a Responses conversation that we take part in: messages, function calls, reasoning.

`wire_tag` names the branch of the item union a class belongs to, so that an object finds its place without guessing.
"""

from typing import ClassVar, Literal

from nemo_gym.wire.base import WireModel
from nemo_gym.wire.parts import InputContent, InputContentPart, NeMoGymReasoningText, NeMoGymSummary, OutputContentPart
from nemo_gym.wire.tokens import TokenIDLogProbMixin

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class NeMoGymEasyInputMessage(WireModel):
    """A message in its short form: a role and what was said."""

    wire_tag: ClassVar[str] = "easy_message"
    tagged_by: ClassVar[frozenset[str]] = frozenset()

    content: InputContent
    role: Literal["user", "assistant", "system", "developer"]
    type: Literal["message"] = "message"


class NeMoGymMessage(WireModel):
    """An input message as the API stores it: a list of parts with a status."""

    wire_tag: ClassVar[str] = "message"
    tagged_by: ClassVar[frozenset[str]] = frozenset({"status", "type"})

    content: list[InputContentPart]
    role: Literal["user", "system", "developer"]
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"


class NeMoGymResponseOutputMessage(WireModel):
    """What the model said."""

    wire_tag: ClassVar[str] = "output_message"
    tagged_by: ClassVar[frozenset[str]] = frozenset({"role", "type"})

    id: str
    content: list[OutputContentPart]
    role: Literal["assistant"] = "assistant"
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"


class NeMoGymResponseFunctionToolCall(WireModel):
    wire_tag: ClassVar[str] = "function_call"

    arguments: str
    call_id: str
    name: str
    type: Literal["function_call"] = "function_call"
    id: str | None = None
    status: ItemStatus | None = None


class NeMoGymFunctionCallOutput(WireModel):
    wire_tag: ClassVar[str] = "function_call_output"

    call_id: str
    output: InputContent
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: ItemStatus | None = None


class NeMoGymResponseReasoningItem(WireModel):
    """What the model thought. It has no `status` on purpose: some endpoints refuse one that is sent back."""

    wire_tag: ClassVar[str] = "reasoning"

    id: str
    summary: list[NeMoGymSummary]
    type: Literal["reasoning"] = "reasoning"
    encrypted_content: str | None = None
    content: list[NeMoGymReasoningText] | None = None


class NeMoGymEasyInputMessageForTraining(NeMoGymEasyInputMessage, TokenIDLogProbMixin):
    wire_tag: ClassVar[str] = "easy_message+tokens"


class NeMoGymMessageForTraining(NeMoGymMessage, TokenIDLogProbMixin):
    wire_tag: ClassVar[str] = "message+tokens"


class NeMoGymResponseOutputMessageForTraining(NeMoGymResponseOutputMessage, TokenIDLogProbMixin):
    wire_tag: ClassVar[str] = "output_message+tokens"


class NeMoGymResponseFunctionToolCallForTraining(NeMoGymResponseFunctionToolCall, TokenIDLogProbMixin):
    wire_tag: ClassVar[str] = "function_call+tokens"


class NeMoGymResponseReasoningItemForTraining(NeMoGymResponseReasoningItem, TokenIDLogProbMixin):
    wire_tag: ClassVar[str] = "reasoning+tokens"


RESPONSES_TO_TRAIN: dict[type[WireModel], type[WireModel]] = {
    NeMoGymEasyInputMessage: NeMoGymEasyInputMessageForTraining,
    NeMoGymMessage: NeMoGymMessageForTraining,
    NeMoGymResponseOutputMessage: NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseFunctionToolCall: NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseReasoningItem: NeMoGymResponseReasoningItemForTraining,
}


def training_variant_of(item_class: type[WireModel]) -> type[WireModel]:
    """The class that adds token fields to `item_class`.

    Raises:
        NotImplementedError: items of this class are never generated token by token.
    """
    try:
        return RESPONSES_TO_TRAIN[item_class]
    except KeyError:
        raise NotImplementedError(f"{item_class.__name__} has no training variant") from None
