"""Anthropic content blocks ↔ Responses items.

A block's `cache_control` is a hint to the provider and left behind, and so is `is_error` of a tool result: its text
says what went wrong.
"""

import json
import re
from typing import Any

from nemo_gym.convert.chat_turns import reasoning_texts
from nemo_gym.convert.shapes import (
    MESSAGES,
    RESPONSES,
    Json,
    NewId,
    dict_at,
    dump_json,
    each_dict,
    optional_list_at,
    optional_text_at,
    text_at,
    unsayable,
)

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)

UNPARSED_ARGUMENTS = "_unparsed_arguments"
"""A model's arguments that are not a JSON object travel under this key, so its mistake reaches the tool unchanged."""


def items_from_user(content: Any, where: str) -> list[Json]:
    """What a user message says: its text and images grouped into messages, its tool results on their own."""
    if isinstance(content, str):
        return [{"type": "message", "role": "user", "content": content}]
    items: list[Json] = []
    parts: list[Json] = []
    for block, place in each_dict(content, f"{where}.content"):
        kind = text_at(block, "type", place)
        if kind == "tool_result":
            _close(items, parts)
            parts = []
            items.append(_function_call_output(block, place))
        else:
            parts.append(_input_part(block, kind, place))
    _close(items, parts)
    return items


def items_from_assistant(content: Any, where: str, *, new_id: NewId, redacted: bool = False) -> list[Json]:
    """What an assistant message says; neighbouring text blocks share a message item.

    Only a model's own answer may hold `redacted` thinking.
    """
    if isinstance(content, str):
        return [output_message([content], new_id)]
    items: list[Json] = []
    texts: list[str] = []
    for block, place in each_dict(content, f"{where}.content"):
        kind = text_at(block, "type", place)
        if kind == "text":
            if optional_list_at(block, "citations", place):
                raise unsayable("citations", RESPONSES, place)
            texts.append(text_at(block, "text", place))
            continue
        if texts:
            items.append(output_message(texts, new_id))
            texts = []
        if kind == "tool_use":
            items.append(_function_call(block, place))
        elif kind == "thinking":
            items.append(_reasoning(block, place, new_id))
        elif kind == "redacted_thinking" and redacted:
            data = text_at(block, "data", place)
            items.append({"type": "reasoning", "id": new_id("rs"), "summary": [], "encrypted_content": data})
        else:
            raise unsayable(kind, RESPONSES, place)
    return [*items, output_message(texts, new_id)] if texts else items


def output_message(texts: list[str], new_id: NewId) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed", "content": content}


def assistant_blocks(item: Json, kind: str, where: str) -> list[Json]:
    """The blocks that say one assistant-side item."""
    if kind == "function_call":
        return [_tool_use(item, where)]
    if kind == "reasoning":
        return _thinking_blocks(item, where)
    if kind != "message":
        raise unsayable(kind, MESSAGES, where)
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    blocks = []
    for part, place in each_dict(content, f"{where}.content"):
        part_kind = text_at(part, "type", place)
        if part_kind not in ("output_text", "input_text", "refusal"):
            raise unsayable(part_kind, f"an assistant message of {MESSAGES}", place)
        text = text_at(part, "refusal" if part_kind == "refusal" else "text", place)
        if text:  # the API refuses empty text blocks
            blocks.append({"type": "text", "text": text})
    return blocks


def user_blocks(content: Any, where: str) -> list[Json]:
    """The blocks that say a user message's content, or a tool's output."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_user_block(part, place) for part, place in each_dict(content, where)]


def tool_result_block(item: Json, where: str) -> Json:
    output = item.get("output")
    content = output if isinstance(output, str) else user_blocks(output, f"{where}.output")
    return {"type": "tool_result", "tool_use_id": text_at(item, "call_id", where), "content": content}


def joined_text(content: Any, where: str, separator: str = "\n") -> str:
    """A string, or the text of a list of text blocks; anything else has no place where this is used."""
    if isinstance(content, str):
        return content
    texts = []
    for block, place in each_dict(content, where):
        kind = text_at(block, "type", place)
        if kind not in ("text", "input_text"):
            raise unsayable(kind, "a place that takes only text", place)
        texts.append(text_at(block, "text", place))
    return separator.join(texts)


def _close(items: list[Json], parts: list[Json]) -> None:
    if parts:
        items.append({"type": "message", "role": "user", "content": parts})


def _input_part(block: Json, kind: str, where: str) -> Json:
    if kind == "text":
        return {"type": "input_text", "text": text_at(block, "text", where)}
    if kind == "image":
        source = dict_at(block, "source", where)
        if source.get("type") != "base64":
            raise unsayable(source.get("type"), "a model's input as an image source", where, fix="send base64 data")
        media = text_at(source, "media_type", f"{where}.source")
        if media not in IMAGE_TYPES:
            raise unsayable(media, "a model's input as an image", where, fix=f"send one of {', '.join(IMAGE_TYPES)}")
        url = f"data:{media};base64,{text_at(source, 'data', f'{where}.source')}"
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    raise unsayable(kind, RESPONSES, where)


def _user_block(part: Json, where: str) -> Json:
    kind = text_at(part, "type", where)
    if kind == "input_text":
        return {"type": "text", "text": text_at(part, "text", where)}
    if kind != "input_image" or part.get("file_id") is not None:
        raise unsayable(kind, MESSAGES, where)
    url = text_at(part, "image_url", where)
    inline = _DATA_URL.fullmatch(url)
    if inline:
        media, data = inline.groups()
        if media not in IMAGE_TYPES:
            raise unsayable(media, f"{MESSAGES} as an image", where, fix=f"send one of {', '.join(IMAGE_TYPES)}")
        return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
    if not url.startswith(("https://", "http://")):
        raise unsayable("this kind of image_url", MESSAGES, where, fix="give an http(s) or a base64 data URL")
    return {"type": "image", "source": {"type": "url", "url": url}}


def _function_call_output(block: Json, where: str) -> Json:
    """A tool result; text is one string, and only a result with images stays a list of parts."""
    content = block.get("content")
    place = f"{where}.content"
    if content is None or isinstance(content, str):
        output: Any = content or ""
    elif any(part.get("type") == "image" for part, _ in each_dict(content, place)):
        output = [_input_part(part, text_at(part, "type", at), at) for part, at in each_dict(content, place)]
    else:
        output = joined_text(content, place)
    return {"type": "function_call_output", "call_id": text_at(block, "tool_use_id", where), "output": output}


def _function_call(block: Json, where: str) -> Json:
    given = dict_at(block, "input", where)
    unparsed = given.get(UNPARSED_ARGUMENTS)
    whole = len(given) == 1 and isinstance(unparsed, str)
    arguments = unparsed if whole else dump_json(given, f"{where}.input")
    call_id = text_at(block, "id", where)
    name = text_at(block, "name", where)
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}


def _tool_use(item: Json, where: str) -> Json:
    arguments = text_at(item, "arguments", where)
    try:
        given = json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        given = {UNPARSED_ARGUMENTS: arguments}
    return {
        "type": "tool_use",
        "id": text_at(item, "call_id", where),
        "name": text_at(item, "name", where),
        "input": given,
    }


def _reasoning(block: Json, where: str, new_id: NewId) -> Json:
    summary = [{"type": "summary_text", "text": text_at(block, "thinking", where)}]
    reasoning: Json = {"type": "reasoning", "id": new_id("rs"), "summary": summary}
    signature = optional_text_at(block, "signature", where)
    return reasoning | {"encrypted_content": signature} if signature else reasoning


def _thinking_blocks(item: Json, where: str) -> list[Json]:
    sealed = optional_text_at(item, "encrypted_content", where)
    if sealed and not item.get("summary") and not item.get("content"):
        return [{"type": "redacted_thinking", "data": sealed}]
    text = "\n".join(reasoning_texts(item, MESSAGES, where))
    return [{"type": "thinking", "thinking": text, "signature": sealed}] if text or sealed else []
