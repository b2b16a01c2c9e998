"""Convert a conversation: Responses items ↔ Chat messages.

To Chat, consecutive items of the assistant become one message. An item's `id` and `status`, an output text's
`annotations` and `logprobs`, the ciphertext of a reasoning item and the items of hosted tools are dropped, because they
are not part of a prompt; if a reasoning item has a summary and content, the summary is used. From Chat, an assistant
message becomes reasoning, message and function call items; fields outside the Chat dialect are dropped. Reasoning
(a thought) in the text of an assistant message is inside `<think>…</think>`.

With `with_tokens`, the token ids and log-probabilities of an assistant message are kept: on its last item in Responses.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.convert.flattened_tools import function_of_custom_call
from nemo_gym.convert.json_access import (
    CHAT,
    RESPONSES,
    Json,
    NewId,
    dict_at,
    expect_dict,
    inexpressible,
    iter_dicts,
    optional_list_at,
    optional_text_at,
    text_at,
    token_fields_at,
)
from nemo_gym.errors import ConversionError

DROPPED_ITEMS = frozenset({"additional_tools", "program", "program_output"}) | {
    f"{tool}_{end}"
    for tool in (
        "apply_patch", "code_interpreter", "computer", "file_search", "image_generation", "local_shell", "mcp", "shell",
        "tool_search", "web_search",
    )
    for end in ("call", "call_output", "output")
} | {"mcp_list_tools", "mcp_approval_request", "mcp_approval_response"}  # fmt: skip
"""Items of hosted tools, which the models behind other dialects do not have; they are left out of a conversation."""

THINK_TAG_PATTERN = re.compile(r"<think>(.*?)</think>", re.DOTALL)

SplitThoughts = Callable[[str], tuple[list[str], str]]
"""Splits the text of a message into its thoughts and the text without them."""

MEDIA_NOTE = "(see the next message)"
"""Text of a tool message whose output has only images or files."""
_FILE_KEYS = ("file_data", "file_id", "filename")


def wrap_in_think_tags(texts: Iterable[str]) -> str:
    """Return texts of reasoning as they stand in the text of a Chat message."""
    return "".join(f"<think>{text}</think>" for text in texts)


def parse_think_tags(content: str) -> tuple[list[str], str]:
    """Return the thoughts in `content`, in order, and the text without them."""
    if "<think>" not in content:  # the common case; the pattern would scan every character
        return [], content
    return THINK_TAG_PATTERN.findall(content), THINK_TAG_PATTERN.sub("", content)


def outside_think_tags(content: str, tokens: list[str]) -> list[int]:
    """Return the indices of the `tokens` outside the thoughts; all indices if the tokens do not join to `content`."""
    spans = [match.span() for match in THINK_TAG_PATTERN.finditer(content)]
    if not spans or "".join(tokens) != content:
        return list(range(len(tokens)))
    outside, start, next_span = [], 0, 0
    for index, token in enumerate(tokens):
        while next_span < len(spans) and start >= spans[next_span][1]:
            next_span += 1
        if next_span == len(spans) or start + len(token) <= spans[next_span][0]:
            outside.append(index)
        start += len(token)
    return outside


@dataclass
class ChatMessages:
    """Chat messages under construction. Items of the assistant are buffered until an item of another role follows."""

    return_token_id_information: bool = False
    messages: list[Json] = field(default_factory=list)
    content_buffer: str = ""
    refusal_buffer: str = ""
    tool_calls_buffer: list[Json] = field(default_factory=list)
    token_information: Json | None = None
    """Token fields of the last buffered item, if it has any."""
    has_message: bool = False
    """An assistant message is buffered, even if its text is empty."""
    media_buffer: list[Json] = field(default_factory=list)
    """Images and files of tool outputs, which Chat accepts only in a user message after the last of these outputs."""

    def flush_media(self) -> None:
        """Append the buffered images and files as a user message."""
        if self.media_buffer:
            self.messages.append({"role": "user", "content": self.media_buffer})
            self.media_buffer = []

    def flush_assistant(self) -> None:
        """Append the buffered assistant message, if there is one, and clear the buffers."""
        if self.content_buffer or self.tool_calls_buffer or self.refusal_buffer or self.has_message:
            # Chat accepts null as content only with tool calls or a refusal.
            no_content = None if self.tool_calls_buffer or self.refusal_buffer else ""
            message: Json = {"role": "assistant", "content": self.content_buffer or no_content}
            if self.refusal_buffer:
                message["refusal"] = self.refusal_buffer
            if self.tool_calls_buffer:
                message["tool_calls"] = self.tool_calls_buffer
            if self.token_information:
                message.update(dict(self.token_information))
            self.messages.append(message)
        self.content_buffer = ""
        self.refusal_buffer = ""
        self.tool_calls_buffer = []
        self.token_information = None
        self.has_message = False


def add_item(chat: ChatMessages, item: Json, path: str) -> None:
    """Add one Responses item to the Chat messages."""
    kind = item_kind(item, path)
    if kind == "custom_tool_call":
        kind, item = "function_call", function_of_custom_call(item, path)
    if kind in DROPPED_ITEMS:
        return
    if kind in ("function_call_output", "custom_tool_call_output"):
        chat.flush_assistant()
        message, media = _tool_message(item, path)
        chat.messages.append(message)
        chat.media_buffer += media
        return
    chat.flush_media()
    if kind == "message" and text_at(item, "role", path) != "assistant":
        chat.flush_assistant()
        chat.messages.append(_non_assistant_message(item, path))
        return
    if kind == "message":
        _add_assistant_message(chat, item, path)
    elif kind == "reasoning":
        chat.content_buffer += wrap_in_think_tags(reasoning_texts(item, path))
    elif kind == "function_call":
        function = {"name": text_at(item, "name", path), "arguments": text_at(item, "arguments", path)}
        chat.tool_calls_buffer.append({"id": text_at(item, "call_id", path), "type": "function", "function": function})
    else:
        raise inexpressible(kind, CHAT, path)
    if chat.return_token_id_information:
        chat.token_information = token_fields_at(item, path) or None


def item_kind(item: Json, path: str) -> str:
    """Return the type of an item; an item without a type but with a role is a message."""
    kind = item.get("type")
    if kind is None:
        if item.get("role") is None:
            raise ConversionError("has neither a type nor a role", where=path)
        return "message"
    if not isinstance(kind, str):
        raise ConversionError("type is not a string", where=path)
    return kind


def reasoning_texts(item: Json, path: str) -> list[str]:
    """Return the readable texts of a reasoning item: its summary, or if that is empty its content.

    Reasoning that is only encrypted has no text; only the endpoint that encrypted it can read it.
    """
    for key in ("summary", "content"):
        parts = optional_list_at(item, key, path)
        if parts:
            return [text_at(part, "text", location) for part, location in iter_dicts(parts, f"{path}.{key}")]
    return []


def _non_assistant_message(item: Json, path: str) -> Json:
    """Convert a message item of another role than the assistant to a Chat message."""
    role = item["role"]
    if role not in ("user", "system", "developer", "tool"):
        raise inexpressible(role, f"{CHAT} as a role", path)
    message = {"role": role, "content": _convert_content(item.get("content"), path, _part_to_chat)}
    return message | {"tool_call_id": text_at(item, "tool_call_id", path)} if role == "tool" else message


def _add_assistant_message(chat: ChatMessages, item: Json, path: str) -> None:
    """Add an assistant message to the buffers."""
    chat.has_message = True
    content = item.get("content")
    if isinstance(content, str):
        chat.content_buffer += content
    elif content is not None:
        for part, location in iter_dicts(content, f"{path}.content"):
            kind = text_at(part, "type", location)
            if kind in ("output_text", "input_text"):
                chat.content_buffer += text_at(part, "text", location)
            elif kind == "refusal":
                chat.refusal_buffer += text_at(part, "refusal", location)
            else:
                raise inexpressible(kind, f"an assistant message of {CHAT}", location)
    for call, _ in iter_dicts(optional_list_at(item, "tool_calls", path), f"{path}.tool_calls"):
        chat.tool_calls_buffer.append(call)


def _tool_message(item: Json, path: str) -> tuple[Json, list[Json]]:
    """Convert the output of a function call to a tool message, in which Chat accepts only text, and its other parts."""
    output = item.get("output")
    media: list[Json] = []
    if not isinstance(output, str):
        texts: list[Json] = []
        for part, location in iter_dicts(output, f"{path}.output"):
            converted = _part_to_chat(part, location)
            (texts if converted["type"] == "text" else media).append(converted)
        output = [{"type": "text", "text": MEDIA_NOTE}] if media and not texts else texts
    return {"role": "tool", "tool_call_id": text_at(item, "call_id", path), "content": output}, media


def lead_with_instructions(messages: list[Json], instructions: str) -> list[Json]:
    """Merge `instructions` and the system messages at the start of `messages` into one system message."""
    texts, other_messages = leading_system_texts(messages)
    return [{"role": "system", "content": "\n\n".join([instructions, *texts])}, *other_messages]


def leading_system_texts(messages: list[Any]) -> tuple[list[str], list[Any]]:
    """Return the texts of the system messages at the start, and the remaining messages. Works for both dialects."""
    texts: list[str] = []
    for message in messages:
        is_system = isinstance(message, dict) and message.get("role") in ("system", "developer")
        text = text_content(message.get("content")) if is_system else None
        if text is None:
            break
        texts.append(text)
    return texts, messages[len(texts) :]


def text_content(content: Any) -> str | None:
    """Return the text of a message's content, or None if it is not text only. Works for both dialects."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("input_text", "text", "output_text"):
            return None
        if not isinstance(part.get("text"), str):
            return None
        texts.append(part["text"])
    return "".join(texts)


def _convert_content(content: Any, path: str, convert_part: Callable[[Json, str], Json]) -> Any:
    """Convert the parts of a message's content; a string stays a string."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ConversionError("content is neither a string nor a list of parts", where=path)
    return [convert_part(part, location) for part, location in iter_dicts(content, f"{path}.content")]


def _part_to_chat(part: Json, path: str) -> Json:
    """Convert a content part of a Responses message to Chat."""
    kind = text_at(part, "type", path)
    if kind == "input_text":
        return {"type": "text", "text": text_at(part, "text", path)}
    if kind == "input_image":
        if part.get("file_id") is not None:
            raise inexpressible("an image given by file_id", CHAT, path, fix="give it as image_url")
        url = text_at(part, "image_url", path)
        return {"type": "image_url", "image_url": {"url": url, "detail": part.get("detail") or "auto"}}
    if kind == "input_video":
        sources = [key for key in ("video_url", "video") if part.get(key) is not None]
        if len(sources) != 1:
            raise ConversionError("a video part has exactly one of video_url and video", where=path)
        return {"type": "video_url", "video_url": {"url": text_at(part, sources[0], path)}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": dict_at(part, "input_audio", path)}
    if kind == "input_file":
        if part.get("file_url") is not None:
            raise inexpressible("a file given by file_url", CHAT, path, fix="give it as file_data or file_id")
        return {"type": "file", "file": {key: part[key] for key in _FILE_KEYS if part.get(key) is not None}}
    raise inexpressible(kind, CHAT, path)


def _part_from_chat(part: Json, path: str) -> Json:
    """Convert a content part of a Chat message to Responses."""
    kind = text_at(part, "type", path)
    if kind == "text":
        return {"type": "input_text", "text": text_at(part, "text", path)}
    if kind == "image_url":
        image = dict_at(part, "image_url", path)
        url = text_at(image, "url", f"{path}.image_url")
        return {"type": "input_image", "image_url": url, "detail": image.get("detail") or "auto"}
    if kind == "video_url":
        video = dict_at(part, "video_url", path)
        return {"type": "input_video", "video_url": text_at(video, "url", f"{path}.video_url")}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": dict_at(part, "input_audio", path)}
    if kind == "file":
        file = {key: value for key, value in dict_at(part, "file", path).items() if value is not None}
        for key in file.keys() - set(_FILE_KEYS):
            raise inexpressible(key, RESPONSES, f"{path}.file")
        return {"type": "input_file", **file}
    raise inexpressible(kind, RESPONSES, path)


def items_from_messages(
    messages: Any, *, new_id: NewId, split_thoughts: SplitThoughts = parse_think_tags, with_tokens: bool = False
) -> list[Json]:
    """Convert a Chat conversation to Responses items."""
    items: list[Json] = []
    for message, path in iter_dicts(messages, "messages"):
        role = text_at(message, "role", path)
        _reject_fields(message, ("name",), path)
        if role == "assistant":
            items += assistant_items(
                message, path, new_id=new_id, split_thoughts=split_thoughts, with_tokens=with_tokens
            )
        elif role == "tool":
            output = _convert_content(message.get("content"), path, _part_from_chat)
            call_id = text_at(message, "tool_call_id", path)
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
        elif role in ("user", "system", "developer"):
            content = _convert_content(message.get("content"), path, _part_from_chat)
            items.append({"type": "message", "role": role, "content": content})
        else:
            raise inexpressible(role, f"{RESPONSES} as a role", path)
    return items


def assistant_items(
    message: Any,
    path: str,
    *,
    new_id: NewId,
    split_thoughts: SplitThoughts = parse_think_tags,
    with_tokens: bool = False,
) -> list[Json]:
    """Convert one assistant message to items; with `with_tokens`, the last item gets the message's token fields."""
    message = expect_dict(message, path)
    _reject_fields(message, ("audio", "function_call"), path)
    text, refusal = _text_and_refusal(message, path)
    thoughts_in_text, text = split_thoughts(text)
    # Reasoning that the server has already separated from the text; some servers send it under both names.
    separate = [optional_text_at(message, key, path) for key in ("reasoning_content", "reasoning")]
    thoughts = [thought for thought in dict.fromkeys(separate) if thought] + thoughts_in_text
    calls = optional_list_at(message, "tool_calls", path)
    items: list[Json] = []
    if thoughts:
        summary = [{"type": "summary_text", "text": thought} for thought in thoughts]
        items.append({"type": "reasoning", "id": new_id("rs"), "summary": summary})
    if text or refusal or not (thoughts or calls):
        items.append(_output_message(text, refusal, message, path, new_id))
    items += [_function_call(call, location) for call, location in iter_dicts(calls, f"{path}.tool_calls")]
    if with_tokens:
        items[-1] |= token_fields_at(message, path)
    return items


def _output_message(text: str, refusal: str, message: Json, path: str, new_id: NewId) -> Json:
    """Build the message item of an assistant message's text and refusal."""
    content: list[Json] = []
    if text or not refusal:
        citations = optional_list_at(message, "annotations", path)
        annotations = [_annotation(*citation) for citation in iter_dicts(citations, f"{path}.annotations")]
        content.append({"type": "output_text", "text": text, "annotations": annotations})
    if refusal:
        content.append({"type": "refusal", "refusal": refusal})
    return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed", "content": content}


def _annotation(annotation: Json, path: str) -> Json:
    kind = text_at(annotation, "type", path)
    if kind != "url_citation":
        raise inexpressible(kind, f"{RESPONSES} as an annotation", path)
    return {"type": kind, **dict_at(annotation, kind, path)}


def _text_and_refusal(message: Json, path: str) -> tuple[str, str]:
    """Return the text and the refusal of an assistant message, whose content is a string or a list of parts."""
    content = message.get("content")
    text, refusal = "", optional_text_at(message, "refusal", path)
    if isinstance(content, str):
        return content, refusal
    for part, location in iter_dicts(optional_list_at(message, "content", path), f"{path}.content"):
        kind = text_at(part, "type", location)
        if kind == "text":
            text += text_at(part, "text", location)
        elif kind == "refusal":
            refusal += text_at(part, "refusal", location)
        else:
            raise inexpressible(kind, f"an assistant message of {RESPONSES}", location)
    return text, refusal


def _function_call(call: Json, path: str) -> Json:
    """Convert a tool call of a Chat message to a function call item."""
    kind = call.get("type") or "function"
    if kind != "function":
        raise inexpressible(kind, f"{RESPONSES} as a function call", path)
    function = dict_at(call, "function", path)
    call_id = text_at(call, "id", path)
    return {
        "type": "function_call",
        "id": call_id,
        "call_id": call_id,
        "name": text_at(function, "name", f"{path}.function"),
        "arguments": text_at(function, "arguments", f"{path}.function"),
        "status": "completed",
    }


def _reject_fields(message: Json, keys: tuple[str, ...], path: str) -> None:
    for key in keys:
        if message.get(key) is not None:
            raise inexpressible(key, RESPONSES, path)
