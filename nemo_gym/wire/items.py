"""Items of a Responses conversation: messages, function calls, reasoning."""

from typing import Any, ClassVar, Literal

from nemo_gym.wire.base import WireModel
from nemo_gym.wire.content_parts import (
    InputContent,
    InputContentPart,
    NeMoGymReasoningText,
    NeMoGymSummary,
    OutputContentPart,
)
from nemo_gym.wire.tokens import TokenIDLogProbMixin

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ItemModel(WireModel):
    """Base class of items. `wire_tag` is the item's tag in the item unions: its `type`, unless a class sets it."""

    wire_tag: ClassVar[str]

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if TokenIDLogProbMixin in cls.__bases__:
            cls.wire_tag += "+tokens"
        elif not hasattr(cls, "wire_tag"):
            cls.wire_tag = cls.model_fields["type"].default


class NeMoGymEasyInputMessage(ItemModel):
    """A message in its short form: a role and a content."""

    wire_tag: ClassVar[str] = "easy_message"
    tagged_by: ClassVar[frozenset[str]] = frozenset()

    content: InputContent
    role: Literal["user", "assistant", "system", "developer"]
    type: Literal["message"] = "message"


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
    tagged_by: ClassVar[frozenset[str]] = frozenset({"role", "type"})

    id: str
    content: list[OutputContentPart]
    role: Literal["assistant"] = "assistant"
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"


class NeMoGymResponseFunctionToolCall(ItemModel):
    arguments: str
    call_id: str
    name: str
    type: Literal["function_call"] = "function_call"
    id: str | None = None
    status: ItemStatus | None = None


class NeMoGymFunctionCallOutput(ItemModel):
    call_id: str
    output: InputContent
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: ItemStatus | None = None


class NeMoGymResponseReasoningItem(ItemModel):
    """Reasoning of the model. It has no `status`, because some endpoints reject a status in their input."""

    id: str
    summary: list[NeMoGymSummary]
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
    pass


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
