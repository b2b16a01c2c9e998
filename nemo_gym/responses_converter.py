"""Responses API ↔ Chat Completions for wire types: the class that model servers use and subclass."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

from pydantic import BaseModel

from nemo_gym.convert import responses_chat
from nemo_gym.convert.chat_conversation import (
    THINK_TAG_PATTERN,
    ChatMessages,
    assistant_items,
    items_from_messages,
    parse_think_tags,
    wrap_in_think_tags,
)
from nemo_gym.convert.chat_stream import ChunkDecoder
from nemo_gym.convert.json_access import Json, from_dict, to_dict, warn_once
from nemo_gym.convert.responses_chat import options_lost_in_chat, options_lost_in_responses
from nemo_gym.errors import ConversionError, UnsupportedRequest
from nemo_gym.wire.base import GENERATION_FIELDS, TOKEN_FIELDS, ItemModel
from nemo_gym.wire.chat_completions import NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.wire.engine_options import ENGINE_OPTIONS, with_engine_options
from nemo_gym.wire.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming

__all__ = [
    "ResponsesConverter",
    "ResponsesConverterState",
    "VLLMConverter",
    "VLLMConverterResponsesToChatCompletionsState",
    "_usage_detail",
    "adopt_ids",
    "split_responses_input_output_items",
    "uuid4",
]

Item = TypeVar("Item")


class ResponsesConverter(BaseModel):
    """Converts Responses requests to Chat, and Chat replies to Responses.

    With `return_token_id_information` the token fields are converted too: on the last item of a turn on one side, on
    the assistant message on the other. With `uses_reasoning_parser`, `<think>…</think>` becomes a reasoning item.
    """

    THINK_TAG_PATTERN: ClassVar[re.Pattern[str]] = THINK_TAG_PATTERN

    return_token_id_information: bool
    uses_reasoning_parser: bool = True
    server_name: str = ""
    """The model server that converts, for its warnings: one for each server and field."""

    def responses_to_chat_completion_create_params(
        self, responses_create_params: Any
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        """Convert a Responses request to Chat.

        A tool's `strict` is dropped, because chat templates print the whole tool into the prompt. The result is not
        validated again: the fields were checked when the request came in.

        Raises:
            UnsupportedRequest: Chat cannot express the request.
        """
        params = to_dict(responses_create_params)
        try:
            chat = responses_chat.chat_request(params, with_tokens=self.return_token_id_information)
        except ConversionError as error:
            raise UnsupportedRequest(error.problem, where=error.where, fix=error.fix) from error
        for tool in chat.get("tools") or []:
            tool["function"].pop("strict", None)
        for field in options_lost_in_chat(params):
            self._warn_dropped(field, "Chat Completions")
        fields = NeMoGymChatCompletionCreateParamsNonStreaming.model_fields
        values = {key: value for key, value in chat.items() if key in fields or key in ENGINE_OPTIONS}
        if not isinstance(values.get("chat_template_kwargs") or {}, dict):
            raise UnsupportedRequest("is not an object", where="chat_template_kwargs")
        has_engine_options = not values.keys() <= fields.keys()
        request_class = NeMoGymChatCompletionCreateParamsNonStreaming
        if has_engine_options:
            request_class = with_engine_options(request_class)
        return request_class.model_construct(_fields_set=set(values), **values)

    def chat_completion_to_response(self, responses_create_params: Any, chat_completion: Any) -> NeMoGymResponse:
        """Convert a completion to the response to `responses_create_params`, whose options it repeats."""
        params = to_dict(responses_create_params)
        response = responses_chat.response_from_completion(params, to_dict(chat_completion), **self._options)
        return from_dict(NeMoGymResponse, response)

    def chat_completion_to_responses_create_params(
        self, chat_completion_create_params: Any
    ) -> NeMoGymResponseCreateParamsNonStreaming:
        """Convert a Chat request to Responses."""
        chat = to_dict(chat_completion_create_params)
        params = responses_chat.responses_request(chat, **self._options)
        for field in options_lost_in_responses(chat):
            self._warn_dropped(field, "the Responses API")
        return from_dict(NeMoGymResponseCreateParamsNonStreaming, params)

    def _warn_dropped(self, field: str, dialect: str) -> None:
        server = f"{self.server_name}: " if self.server_name else ""
        warn_once(f"{server}{field!r} is not sent to the model: {dialect} has no such option")

    def chat_completions_messages_to_responses_items(self, messages: Iterable[Any]) -> list[ItemModel]:
        """Convert a Chat conversation to Responses items."""
        conversation = to_dict(list(messages) if isinstance(messages, Iterable) else messages)
        return _wire_items(items_from_messages(conversation, **self._options))

    def postprocess_assistant_message_dict(self, message_dict: dict[str, Any]) -> list[ItemModel]:
        """Convert one assistant message of Chat to items."""
        return _wire_items(assistant_items(to_dict(message_dict), "message", **self._options))

    def postprocess_chat_response(self, choice: Any) -> list[ItemModel]:
        """Convert one choice of a completion to items."""
        return self.postprocess_assistant_message_dict(to_dict(_field(choice, "message")))

    @staticmethod
    def _wrap_reasoning_in_think_tags(texts: Iterable[str]) -> str:
        return wrap_in_think_tags(filter(None, texts))

    @classmethod
    def _parse_think_tags(cls, content: str) -> tuple[list[str], str]:
        return parse_think_tags(content)

    @classmethod
    def _extract_reasoning_from_content(cls, content: str) -> tuple[list[str], str]:
        """Return the thoughts in a text and the text without them; override this for other notations."""
        return cls._parse_think_tags(content)

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "new_id": _new_id,
            "split_thoughts": self._split_thoughts,
            "with_tokens": self.return_token_id_information,
        }

    def _split_thoughts(self, content: str) -> tuple[list[str], str]:
        return self._extract_reasoning_from_content(content) if self.uses_reasoning_parser else ([], content)


def adopt_ids(response: NeMoGymResponse, decoder: ChunkDecoder) -> None:
    """Give a response and its items the ids under which a decoder has streamed them."""
    response.id = decoder.response["id"]
    streamed = list(decoder.items)
    for item in response.output:
        match = next((other for other in streamed if other["type"] == item.type), None)
        if match is not None:
            streamed.remove(match)
            item.id = match["id"]  # type: ignore[union-attr]


def with_streamed_items(response: NeMoGymResponse, items: list[Json]) -> NeMoGymResponse:
    """Return a response with the items that the client has received, if it is divided into other ones.

    An endpoint that alternates between thoughts and text streams an item for each; its whole answer has one of each.
    """
    if [item.type for item in response.output] == [item["type"] for item in items]:
        return response
    last = response.output[-1].model_dump(mode="json", exclude_none=True)
    fields = {name: last[name] for name in (*TOKEN_FIELDS, *GENERATION_FIELDS) if name in last}
    answer = response.model_dump(exclude_unset=True)
    return NeMoGymResponse.model_validate({**answer, "output": [*items[:-1], {**items[-1], **fields}]})


VLLMConverter = ResponsesConverter
ResponsesConverterState = VLLMConverterResponsesToChatCompletionsState = ChatMessages


def split_responses_input_output_items(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Split a conversation into the prompt and the items from the first generated one on."""
    for index, item in enumerate(items):
        kind = str(_field(item, "type"))
        is_generated = kind.endswith("_call") or kind in ("reasoning", "mcp_approval_request", "mcp_list_tools")
        if is_generated or _field(item, "role") == "assistant":
            return list(items[:index]), list(items[index:])
    return list(items), []


def _usage_detail(usage: Any, detail_group: str, detail_name: str | None = None, *top_level_aliases: str) -> int | None:
    """Return a count of `usage` (object or dict); None if unknown.

    It is `usage.detail_group.detail_name` (without a name `usage.detail_group`), else the first alias in `usage`.
    """
    details = _field(usage, detail_group)
    values = [details if detail_name is None else _field(details, detail_name)]
    values += [_field(usage, alias) for alias in top_level_aliases]
    return next((value for value in values if isinstance(value, int)), None)


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


def _wire_items(items: list[Json]) -> list[Any]:
    """Return items as objects of their wire classes; an item with token fields gets the training class."""
    request = from_dict(NeMoGymResponseCreateParamsNonStreaming, {"input": items})
    return list(request.input)
