"""The two item unions: what a request's `input` and a response's `output` may contain.

The branch is chosen by `type` (and for messages by their form), never by trying one class after the other.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Discriminator, Tag
from pydantic_core import PydanticCustomError

from nemo_gym.wire import hosted, items
from nemo_gym.wire.base import DUMP_BY_CLASS, as_plain, text_or_list
from nemo_gym.wire.parts import output_part_type
from nemo_gym.wire.tokens import check_token_fields, has_token_fields

_TRAINABLE = frozenset(cls.wire_tag for cls in items.RESPONSES_TO_TRAIN)  # type: ignore[attr-defined]
_INPUT_TYPES = frozenset({"message", "function_call", "function_call_output", "reasoning"}) | {
    cls.wire_tag for cls in hosted.HOSTED_ITEMS
}
_IMPLIED_TYPES: tuple[tuple[frozenset[str], dict[str, str]], ...] = (
    (frozenset({"call_id", "output"}), {"type": "function_call_output"}),
    (frozenset({"call_id", "name", "arguments"}), {"type": "function_call"}),
    (frozenset({"id", "summary"}), {"type": "reasoning"}),
    (frozenset({"id", "content"}), {"type": "message", "role": "assistant"}),
)
_OUTPUT_TYPES = _INPUT_TYPES | hosted.PROVIDER_ITEM_TYPES


def _is_generated(content: list[Any]) -> bool:
    return not content or output_part_type(content[0]) in ("output_text", "refusal")


def _message_branch(message: Mapping[str, Any]) -> str:
    """Which form of message this is: what the model said, a stored one with a status, or the short form."""
    content = message.get("content")
    if isinstance(content, list):
        if message.get("role") == "assistant":
            if message.get("id") is not None and _is_generated(content):
                return "output_message"
        elif message.get("status") is not None:
            return "message"
    return "easy_message"


def item_branch(item: Any) -> str | None:
    """The tag of the union branch that `item` belongs to."""
    if not isinstance(item, dict):
        return getattr(item, "wire_tag", None)
    kind = item.get("type")
    branch = _message_branch(item) if kind is None or kind == "message" else kind
    if branch in _TRAINABLE and has_token_fields(item):
        return f"{branch}+tokens"
    return "provider_item" if branch in hosted.PROVIDER_ITEM_TYPES else branch


def _as_item(item: Any) -> Any:
    """An item class's object or a dictionary; every other kind of object is opened."""
    if type(item) is dict:
        return item
    if isinstance(item, BaseModel):
        # Token fields given to a class without them are extras there; as a dictionary they find the training class.
        tokens_beside = item.model_extra and has_token_fields(item.model_extra)
        return as_plain(item) if tokens_beside or not hasattr(item, "wire_tag") else item
    if isinstance(item, Mapping):
        return dict(item)
    raise PydanticCustomError("item_type", "An item must be an object")


def _check_item(item: dict[str, Any], known: frozenset[str]) -> None:
    kind = item.get("type")
    if kind is not None:
        if not isinstance(kind, str):
            raise PydanticCustomError("unknown_item_type", "The type of an item must be a text")
        if kind not in known:
            raise PydanticCustomError("unknown_item_type", "Unknown item type {type}", {"type": repr(kind[:80])})
    if has_token_fields(item):
        check_token_fields(item)


def _with_type(item: dict[str, Any]) -> dict[str, Any]:
    """An item that says neither type nor role, with the type its fields imply. Older datasets have such items."""
    for fields, kind in _IMPLIED_TYPES:
        if fields <= item.keys():
            return {**item, **kind}
    raise PydanticCustomError("missing_item_type", "An item must have `type`, or `role` and `content`")


def checked_input_item(item: Any) -> Any:
    """An item for `input`, with everything the union needs to find its branch."""
    item = _as_item(item)
    if type(item) is dict:
        if item.get("type") is None and "role" not in item:
            item = _with_type(item)
        _check_item(item, _INPUT_TYPES)
    return item


def checked_output_item(item: Any) -> Any:
    """An item of `output`, which must say its type."""
    item = _as_item(item)
    if type(item) is dict:
        if item.get("type") is None:
            raise PydanticCustomError("missing_item_type", "Each output item must have `type`")
        _check_item(item, _OUTPUT_TYPES)
    return item


_Item = (
    Annotated[items.NeMoGymEasyInputMessage, Tag("easy_message")]
    | Annotated[items.NeMoGymEasyInputMessageForTraining, Tag("easy_message+tokens")]
    | Annotated[items.NeMoGymMessage, Tag("message")]
    | Annotated[items.NeMoGymMessageForTraining, Tag("message+tokens")]
    | Annotated[items.NeMoGymResponseOutputMessage, Tag("output_message")]
    | Annotated[items.NeMoGymResponseOutputMessageForTraining, Tag("output_message+tokens")]
    | Annotated[items.NeMoGymResponseFunctionToolCall, Tag("function_call")]
    | Annotated[items.NeMoGymResponseFunctionToolCallForTraining, Tag("function_call+tokens")]
    | Annotated[items.NeMoGymFunctionCallOutput, Tag("function_call_output")]
    | Annotated[items.NeMoGymResponseReasoningItem, Tag("reasoning")]
    | Annotated[items.NeMoGymResponseReasoningItemForTraining, Tag("reasoning+tokens")]
    | Annotated[hosted.NeMoGymMcpCall, Tag("mcp_call")]
    | Annotated[hosted.NeMoGymMcpListTools, Tag("mcp_list_tools")]
    | Annotated[hosted.NeMoGymMcpApprovalRequest, Tag("mcp_approval_request")]
    | Annotated[hosted.NeMoGymMcpApprovalResponse, Tag("mcp_approval_response")]
    | Annotated[hosted.NeMoGymFileSearchToolCall, Tag("file_search_call")]
    | Annotated[hosted.NeMoGymFunctionWebSearch, Tag("web_search_call")]
    | Annotated[hosted.NeMoGymComputerToolCall, Tag("computer_call")]
    | Annotated[hosted.NeMoGymComputerCallOutput, Tag("computer_call_output")]
    | Annotated[hosted.NeMoGymImageGenerationCall, Tag("image_generation_call")]
    | Annotated[hosted.NeMoGymCodeInterpreterToolCall, Tag("code_interpreter_call")]
    | Annotated[hosted.NeMoGymLocalShellCall, Tag("local_shell_call")]
    | Annotated[hosted.NeMoGymLocalShellCallOutput, Tag("local_shell_call_output")]
    | Annotated[hosted.NeMoGymCustomToolCall, Tag("custom_tool_call")]
    | Annotated[hosted.NeMoGymCustomToolCallOutput, Tag("custom_tool_call_output")]
)

NeMoGymResponseInputItem = Annotated[
    _Item, Discriminator(item_branch), BeforeValidator(checked_input_item), DUMP_BY_CLASS
]
NeMoGymResponseOutputItem = Annotated[
    _Item | Annotated[hosted.ProviderItem, Tag("provider_item")],
    Discriminator(item_branch),
    BeforeValidator(checked_output_item),
    DUMP_BY_CLASS,
]
NeMoGymResponseInput = list[NeMoGymResponseInputItem]
TextOrItems = Annotated[
    Annotated[str, Tag("text")] | Annotated[NeMoGymResponseInput, Tag("list")],
    Discriminator(text_or_list),
    DUMP_BY_CLASS,
]
