"""Anthropic content blocks ↔ Responses items.

The `cache_control` of a block is a hint to the provider and is dropped. So is `is_error` of a tool result, whose text
describes the error.
"""

import json
import re
from typing import Any

from nemo_gym.convert.chat_conversation import reasoning_texts
from nemo_gym.convert.json_access import (
    MESSAGES,
    RESPONSES,
    Json,
    NewId,
    dict_at,
    dump_json,
    inexpressible,
    iter_dicts,
    optional_list_at,
    optional_text_at,
    text_at,
)

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_IMAGE_FIX = f"send one of {', '.join(IMAGE_TYPES)}"
_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)

UNPARSED_ARGUMENTS = "_unparsed_arguments"
"""The key of arguments that are not a JSON object, so that the model's mistake reaches the tool unchanged."""


def items_from_user(content: Any, where: str) -> list[Json]:
    """Convert a user message: texts and images become messages, tool results become items."""
    if isinstance(content, str):
        return [{"type": "message", "role": "user", "content": content}]
    items: list[Json] = []
    parts: list[Json] = []
    for block, location in iter_dicts(content, f"{where}.content"):
        kind = text_at(block, "type", location)
        if kind == "tool_result":
            _add_user_message(items, parts)
            parts = []
            items.append(_function_call_output(block, location))
        else:
            parts.append(_input_part(block, kind, location))
    _add_user_message(items, parts)
    return items


def items_from_assistant(content: Any, where: str, *, new_id: NewId, redacted: bool = False) -> list[Json]:
    """Convert an assistant message; consecutive text blocks become one message item.

    Only a model's reply may contain `redacted` thinking.
    """
    if isinstance(content, str):
        return [output_message([content], new_id)]
    items: list[Json] = []
    texts: list[str] = []
    for block, location in iter_dicts(content, f"{where}.content"):
        kind = text_at(block, "type", location)
        if kind == "text":
            if optional_list_at(block, "citations", location):
                raise inexpressible("citations", RESPONSES, location)
            texts.append(text_at(block, "text", location))
            continue
        if texts:
            items.append(output_message(texts, new_id))
            texts = []
        if kind == "tool_use":
            items.append(_function_call(block, location))
        elif kind == "thinking":
            items.append(_reasoning(block, location, new_id))
        elif kind == "redacted_thinking" and redacted:
            data = text_at(block, "data", location)
            items.append({"type": "reasoning", "id": new_id("rs"), "summary": [], "encrypted_content": data})
        else:
            raise inexpressible(kind, RESPONSES, location)
    return [*items, output_message(texts, new_id)] if texts else items


def output_message(texts: list[str], new_id: NewId) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed", "content": content}


def assistant_blocks(item: Json, kind: str, where: str) -> list[Json]:
    """Convert one item of the assistant to blocks."""
    if kind == "function_call":
        return [_tool_use(item, where)]
    if kind == "reasoning":
        return _thinking_blocks(item, where)
    if kind != "message":
        raise inexpressible(kind, MESSAGES, where)
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    blocks = []
    for part, location in iter_dicts(content, f"{where}.content"):
        part_kind = text_at(part, "type", location)
        if part_kind not in ("output_text", "input_text", "refusal"):
            raise inexpressible(part_kind, f"an assistant message of {MESSAGES}", location)
        text = text_at(part, "refusal" if part_kind == "refusal" else "text", location)
        if text:  # the API refuses empty text blocks
            blocks.append({"type": "text", "text": text})
    return blocks


def user_blocks(content: Any, where: str) -> list[Json]:
    """Convert the content of a user message, or the output of a tool, to blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_user_block(part, location) for part, location in iter_dicts(content, where)]


def tool_result_block(item: Json, where: str) -> Json:
    output = item.get("output")
    content = output if isinstance(output, str) else user_blocks(output, f"{where}.output")
    return {"type": "tool_result", "tool_use_id": text_at(item, "call_id", where), "content": content}


def joined_text(content: Any, where: str, separator: str = "\n") -> str:
    """Return a string, or the joined texts of a list of text blocks."""
    if isinstance(content, str):
        return content
    texts = []
    for block, location in iter_dicts(content, where):
        kind = text_at(block, "type", location)
        if kind not in ("text", "input_text"):
            raise inexpressible(kind, "text", location)
        texts.append(text_at(block, "text", location))
    return separator.join(texts)


def _add_user_message(items: list[Json], parts: list[Json]) -> None:
    if parts:
        items.append({"type": "message", "role": "user", "content": parts})


def _input_part(block: Json, kind: str, where: str) -> Json:
    if kind == "text":
        return {"type": "input_text", "text": text_at(block, "text", where)}
    if kind == "image":
        source = dict_at(block, "source", where)
        if source.get("type") != "base64":
            raise inexpressible(source.get("type"), "a model's input as an image source", where, fix="send base64 data")
        media = text_at(source, "media_type", f"{where}.source")
        if media not in IMAGE_TYPES:
            raise inexpressible(media, "a model's input as an image", where, fix=_IMAGE_FIX)
        url = f"data:{media};base64,{text_at(source, 'data', f'{where}.source')}"
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    raise inexpressible(kind, RESPONSES, where)


def _user_block(part: Json, where: str) -> Json:
    kind = text_at(part, "type", where)
    if kind == "input_text":
        return {"type": "text", "text": text_at(part, "text", where)}
    if kind != "input_image" or part.get("file_id") is not None:
        raise inexpressible(kind, MESSAGES, where)
    url = text_at(part, "image_url", where)
    inline = _DATA_URL.fullmatch(url)
    if inline:
        media, data = inline.groups()
        if media not in IMAGE_TYPES:
            raise inexpressible(media, f"{MESSAGES} as an image", where, fix=_IMAGE_FIX)
        return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
    if not url.startswith(("https://", "http://")):
        raise inexpressible("this kind of image_url", MESSAGES, where, fix="give an http(s) or a base64 data URL")
    return {"type": "image", "source": {"type": "url", "url": url}}


def _function_call_output(block: Json, where: str) -> Json:
    """Convert a tool result: text becomes one string, a result with images a list of parts."""
    content = block.get("content")
    location = f"{where}.content"
    if content is None or isinstance(content, str):
        output: Any = content or ""
    elif any(part.get("type") == "image" for part, _ in iter_dicts(content, location)):
        output = [_input_part(part, text_at(part, "type", at), at) for part, at in iter_dicts(content, location)]
    else:
        output = joined_text(content, location)
    return {"type": "function_call_output", "call_id": text_at(block, "tool_use_id", where), "output": output}


def _function_call(block: Json, where: str) -> Json:
    tool_input = dict_at(block, "input", where)
    unparsed = tool_input.get(UNPARSED_ARGUMENTS)
    is_unparsed = len(tool_input) == 1 and isinstance(unparsed, str)
    arguments = unparsed if is_unparsed else dump_json(tool_input, f"{where}.input")
    call_id = text_at(block, "id", where)
    name = text_at(block, "name", where)
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}


def _tool_use(item: Json, where: str) -> Json:
    arguments = text_at(item, "arguments", where)
    try:
        tool_input = json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        tool_input = None
    if not isinstance(tool_input, dict):
        tool_input = {UNPARSED_ARGUMENTS: arguments}
    call_id, name = text_at(item, "call_id", where), text_at(item, "name", where)
    return {"type": "tool_use", "id": call_id, "name": name, "input": tool_input}


def _reasoning(block: Json, where: str, new_id: NewId) -> Json:
    summary = [{"type": "summary_text", "text": text_at(block, "thinking", where)}]
    reasoning: Json = {"type": "reasoning", "id": new_id("rs"), "summary": summary}
    signature = optional_text_at(block, "signature", where)
    return reasoning | {"encrypted_content": signature} if signature else reasoning


def _thinking_blocks(item: Json, where: str) -> list[Json]:
    encrypted = optional_text_at(item, "encrypted_content", where)
    if encrypted and not item.get("summary") and not item.get("content"):
        return [{"type": "redacted_thinking", "data": encrypted}]
    text = "\n".join(reasoning_texts(item, MESSAGES, where))
    return [{"type": "thinking", "thinking": text, "signature": encrypted}] if text or encrypted else []
