"""Responses API ↔ Chat Completions for the wire types: the class model servers use and subclass."""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from nemo_gym.convert import responses_chat
from nemo_gym.convert.chat_items import assistant_items
from nemo_gym.convert.chat_turns import ChatTurns
from nemo_gym.convert.plain import plain
from nemo_gym.convert.shapes import Json
from nemo_gym.convert.thinking import THINK_TAG_PATTERN, no_thoughts, parse_think_tags, wrap_in_think_tags
from nemo_gym.convert.tokens import TOKEN_FIELDS
from nemo_gym.errors import ConversionError
from nemo_gym.wire.base import WireModel
from nemo_gym.wire.chat_params import NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.wire.items import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseReasoningItem,
    training_variant_of,
)
from nemo_gym.wire.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming

__all__ = [
    "ResponsesConverter",
    "ResponsesConverterState",
    "VLLMConverter",
    "VLLMConverterResponsesToChatCompletionsState",
    "_usage_detail",
    "split_responses_input_output_items",
    "uuid4",
]

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Model = TypeVar("Model", bound=BaseModel)

_GENERATED_TYPES = frozenset(
    {
        "code_interpreter_call",
        "computer_call",
        "custom_tool_call",
        "file_search_call",
        "function_call",
        "image_generation_call",
        "local_shell_call",
        "mcp_approval_request",
        "mcp_call",
        "mcp_list_tools",
        "reasoning",
        "web_search_call",
    }
)


@dataclass
class ResponsesConverterState(ChatTurns):
    """Chat messages under construction, for converters that add to them item by item."""


class ResponsesConverter(BaseModel):
    """Says Responses requests in Chat, and Chat answers in Responses.

    With `return_token_id_information` the token fields travel too: on the last item of a turn on one side, on the
    assistant message on the other. With `uses_reasoning_parser`, `<think>…</think>` in a text becomes a reasoning item.
    """

    THINK_TAG_PATTERN: ClassVar[re.Pattern[str]] = THINK_TAG_PATTERN

    return_token_id_information: bool
    uses_reasoning_parser: bool = True

    def responses_to_chat_completion_create_params(
        self, responses_create_params: Any
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        """The Chat request that asks what a Responses request asks.

        A tool's `strict` is left out: chat templates print the whole tool into the prompt. Nothing is validated
        again: the fields were checked when the request came in.
        """
        params = plain(responses_create_params)
        chat = responses_chat.chat_request(params, with_tokens=self.return_token_id_information)
        for tool in chat.get("tools") or []:
            tool["function"].pop("strict", None)
        for field in responses_chat.unsaid_in_chat(params):
            _warn_once(f"{field!r} is not sent to the model: Chat Completions has no word for it")
        known = NeMoGymChatCompletionCreateParamsNonStreaming.model_fields
        said = {key: value for key, value in chat.items() if key in known}
        return NeMoGymChatCompletionCreateParamsNonStreaming.model_construct(_fields_set=set(said), **said)

    def chat_completion_to_response(self, responses_create_params: Any, chat_completion: Any) -> NeMoGymResponse:
        """A completion as the response to `responses_create_params`, whose options it repeats."""
        response = responses_chat.response_from_completion(
            plain(responses_create_params, leave_out=("input",)),
            plain(chat_completion),
            new_id=_new_id,
            split_thoughts=self._split_thoughts,
            with_tokens=self.return_token_id_information,
        )
        response["output"] = [_as_item(item) for item in response["output"]]
        return _checked(NeMoGymResponse, response)

    def chat_completion_to_responses_create_params(
        self, chat_completion_create_params: Any
    ) -> NeMoGymResponseCreateParamsNonStreaming:
        """The Responses request that asks what a Chat request asks."""
        chat = plain(chat_completion_create_params)
        params = responses_chat.responses_request(
            chat,
            new_id=_new_id,
            split_thoughts=self._split_thoughts,
            with_tokens=self.return_token_id_information,
        )
        for field in responses_chat.unsaid_in_responses(chat):
            _warn_once(f"{field!r} is not sent to the model: the Responses API has no word for it")
        params["input"] = [_as_item(item) for item in params["input"]]
        return _checked(NeMoGymResponseCreateParamsNonStreaming, params)

    def chat_completions_messages_to_responses_items(self, messages: Iterable[Any]) -> list[WireModel]:
        """A Chat conversation as Responses items."""
        items = responses_chat.items_from_messages(
            plain(list(messages) if isinstance(messages, Iterable) else messages),
            new_id=_new_id,
            split_thoughts=self._split_thoughts,
            with_tokens=self.return_token_id_information,
        )
        return [_as_item(item) for item in items]

    def postprocess_assistant_message_dict(self, message_dict: dict[str, Any]) -> list[WireModel]:
        """What one assistant message of Chat says, item by item."""
        items = assistant_items(
            plain(message_dict),
            "message",
            new_id=_new_id,
            split_thoughts=self._split_thoughts,
            with_tokens=self.return_token_id_information,
        )
        return [_as_item(item) for item in items]

    def postprocess_chat_response(self, choice: Any) -> list[WireModel]:
        """What one choice of a completion says, item by item."""
        message = choice.get("message") if isinstance(choice, dict) else getattr(choice, "message", None)
        return self.postprocess_assistant_message_dict(plain(message))

    @staticmethod
    def _wrap_reasoning_in_think_tags(texts: Iterable[str]) -> str:
        return wrap_in_think_tags(texts)

    @classmethod
    def _parse_think_tags(cls, content: str) -> tuple[list[str], str]:
        return parse_think_tags(content)

    @classmethod
    def _extract_reasoning_from_content(cls, content: str) -> tuple[list[str], str]:
        """The thoughts in a text and the text without them; subclasses for other notations override this."""
        return cls._parse_think_tags(content)

    def _split_thoughts(self, content: str) -> tuple[list[str], str]:
        return self._extract_reasoning_from_content(content) if self.uses_reasoning_parser else no_thoughts(content)


VLLMConverter = ResponsesConverter
VLLMConverterResponsesToChatCompletionsState = ResponsesConverterState


def split_responses_input_output_items(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """The prompt and what was generated after it: cut at the first thing a model said, thought or called."""
    for index, item in enumerate(items):
        if _field(item, "role") == "assistant" or _field(item, "type") in _GENERATED_TYPES:
            return list(items[:index]), list(items[index:])
    return list(items), []


def _usage_detail(usage: Any, group: str, name: str | None = None) -> int | None:
    """A count of `usage`, or of a detail group in it; None when it is unknown. Takes objects and dicts."""
    details = _field(usage, group)
    value = details if name is None else _field(details, name)
    return value if isinstance(value, int) else None


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


def _as_item(item: Json) -> WireModel:
    """The wire object an item says, with room for token fields if it has any."""
    cls = _ITEM_CLASSES[item["type"]]
    if item["type"] == "message" and item["role"] != "assistant":
        cls = NeMoGymEasyInputMessage
    if any(name in item for name in TOKEN_FIELDS):
        cls = training_variant_of(cls)
    return _checked(cls, item)


_ITEM_CLASSES: dict[str, type[WireModel]] = {
    "function_call": NeMoGymResponseFunctionToolCall,
    "function_call_output": NeMoGymFunctionCallOutput,
    "message": NeMoGymResponseOutputMessage,
    "reasoning": NeMoGymResponseReasoningItem,
}


def _checked(cls: type[Model], said: Json) -> Model:
    """`said` as an object of ours; what is wrong with it is one `ConversionError`."""
    try:
        return cls.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ConversionError(first["msg"], where=f"{cls.__name__}.{where}") from error


@lru_cache(maxsize=256)
def _warn_once(text: str) -> None:
    log.warning(text)
