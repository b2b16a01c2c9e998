"""Convert content: Anthropic blocks ↔ Responses items.

The `cache_control` of a block is dropped, because it is only a hint to the provider. The `is_error` of a tool result is
dropped, because the text of the result describes the error. Blocks of tools that run at Anthropic are dropped, and so
are the citations of an earlier answer: they are not part of a prompt elsewhere.
"""

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
    optional_text_at,
    text_at,
)
from nemo_gym.wire.call_reply import parse_tool_arguments

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_IMAGE_FIX = f"send one of {', '.join(IMAGE_TYPES)}"
_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)

SERVER_BLOCKS = frozenset(
    {"server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result"}
    | {"code_execution_tool_result", "bash_code_execution_tool_result", "tool_search_tool_result"}
    | {"text_editor_code_execution_tool_result", "container_upload", "compaction"}
)
"""Blocks of tools that run at Anthropic; they are left out of a conversation."""

UNPARSED_ARGUMENTS = "_unparsed_arguments"
"""The only key of a tool's `input` if the arguments of the function call are not a JSON object; holds their text."""


def items_from_user(content: Any, path: str) -> list[Json]:
    """Convert a user message: texts and images become message items, tool results become output items."""
    if isinstance(content, str):
        return [{"type": "message", "role": "user", "content": content}]
    items: list[Json] = []
    for block, location in iter_dicts(content, f"{path}.content"):
        kind = text_at(block, "type", location)
        if kind == "tool_result":
            items.append(_function_call_output(block, location))
            continue
        if not items or items[-1]["type"] != "message":
            items.append({"type": "message", "role": "user", "content": []})
        items[-1]["content"] += _input_parts(block, kind, location)
    return items


def items_from_assistant(content: Any, path: str, *, new_id: NewId) -> list[Json]:
    """Convert an assistant message; consecutive text blocks become one message item."""
    if isinstance(content, str):
        return [output_message(content, new_id)]
    items: list[Json] = []
    for block, location in iter_dicts(content, f"{path}.content"):
        kind = text_at(block, "type", location)
        if kind == "text":
            message = output_message(text_at(block, "text", location), new_id)
            if items and items[-1]["type"] == "message":
                items[-1]["content"] += message["content"]
            else:
                items.append(message)
        elif kind == "tool_use":
            items.append(_function_call(block, location))
        elif kind == "thinking":
            items.append(_reasoning(block, location, new_id))
        elif kind == "redacted_thinking":
            data = text_at(block, "data", location)
            items.append({"type": "reasoning", "id": new_id("rs"), "summary": [], "encrypted_content": data})
        elif kind not in SERVER_BLOCKS:
            raise inexpressible(kind, RESPONSES, location)
    return items


def output_message(text: str, new_id: NewId) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed", "content": content}


def assistant_blocks(item: Json, kind: str, path: str) -> list[Json]:
    """Convert one item of the assistant to blocks."""
    if kind == "function_call":
        return [tool_use_block(item, path)]
    if kind == "reasoning":
        return _thinking_blocks(item, path)
    if kind != "message":
        raise inexpressible(kind, MESSAGES, path)
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    blocks = []
    for part, location in iter_dicts(content, f"{path}.content"):
        part_kind = text_at(part, "type", location)
        if part_kind not in ("output_text", "input_text", "refusal"):
            raise inexpressible(part_kind, f"an assistant message of {MESSAGES}", location)
        text = text_at(part, "refusal" if part_kind == "refusal" else "text", location)
        if text:  # the API rejects empty text blocks
            blocks.append({"type": "text", "text": text})
    return blocks


def user_blocks(content: Any, path: str) -> list[Json]:
    """Convert the content of a user message, or the output of a tool, to blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_user_block(part, location) for part, location in iter_dicts(content, path)]


def tool_result_block(item: Json, path: str) -> Json:
    output = item.get("output")
    content = output if isinstance(output, str) else user_blocks(output, f"{path}.output")
    return {"type": "tool_result", "tool_use_id": text_at(item, "call_id", path), "content": content}


def joined_text(content: Any, path: str) -> str:
    """Return content that is a string or a list of text blocks as one string; blocks are joined by line breaks."""
    if isinstance(content, str):
        return content
    texts = []
    for block, location in iter_dicts(content, path):
        kind = text_at(block, "type", location)
        if kind not in ("text", "input_text"):
            raise inexpressible(kind, "text", location)
        texts.append(text_at(block, "text", location))
    return "\n".join(texts)


def _input_parts(block: Json, kind: str, path: str) -> list[Json]:
    """Convert a block of a user message or tool result to content parts."""
    if kind == "text":
        return [{"type": "input_text", "text": text_at(block, "text", path)}]
    if kind == "image":
        return [_image_part(dict_at(block, "source", path), f"{path}.source")]
    if kind == "document":
        return _document_parts(block, path)
    if kind == "search_result":
        texts = [text_at(block, "title", path), text_at(block, "source", path)]
        return [_text_part("\n".join([*texts, joined_text(block.get("content"), f"{path}.content")]))]
    if kind == "tool_reference":
        return [_text_part(f"tool: {text_at(block, 'tool_name', path)}")]
    raise inexpressible(kind, RESPONSES, path)


def _text_part(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _image_part(source: Json, path: str) -> Json:
    """Convert the source of an image to a content part."""
    kind = source.get("type")
    if kind == "url":
        return {"type": "input_image", "image_url": text_at(source, "url", path), "detail": "auto"}
    if kind == "file":
        return {"type": "input_image", "file_id": text_at(source, "file_id", path), "detail": "auto"}
    if kind != "base64":
        raise inexpressible(kind, "a model's input as an image source", path, fix="send base64 data")
    media = text_at(source, "media_type", path)
    if media not in IMAGE_TYPES:
        raise inexpressible(media, "a model's input as an image", path, fix=_IMAGE_FIX)
    url = f"data:{media};base64,{text_at(source, 'data', path)}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _document_parts(block: Json, path: str) -> list[Json]:
    """Convert a document to a file part, or to texts and images if it consists of them, after title and context."""
    heading = [optional_text_at(block, key, path) for key in ("title", "context")]
    parts = [_text_part(text) for text in heading if text]
    source, location = dict_at(block, "source", path), f"{path}.source"
    kind = text_at(source, "type", location)
    name = optional_text_at(block, "title", path) or "document.pdf"
    if kind == "text":
        return [*parts, _text_part(text_at(source, "data", location))]
    if kind == "base64":
        data = f"data:{text_at(source, 'media_type', location)};base64,{text_at(source, 'data', location)}"
        return [*parts, {"type": "input_file", "filename": name, "file_data": data}]
    if kind == "url":
        return [*parts, {"type": "input_file", "file_url": text_at(source, "url", location)}]
    if kind == "file":
        return [*parts, {"type": "input_file", "file_id": text_at(source, "file_id", location)}]
    if kind == "content":
        content = source.get("content")
        if isinstance(content, str):
            return [*parts, _text_part(content)]
        for inner, inner_path in iter_dicts(content, f"{location}.content"):
            parts += _input_parts(inner, text_at(inner, "type", inner_path), inner_path)
        return parts
    raise inexpressible(kind, "a model's input as the source of a document", location)


def _user_block(part: Json, path: str) -> Json:
    """Convert a content part to a text or image block."""
    kind = text_at(part, "type", path)
    if kind == "input_text":
        return {"type": "text", "text": text_at(part, "text", path)}
    if kind != "input_image" or part.get("file_id") is not None:
        raise inexpressible(kind, MESSAGES, path)
    url = text_at(part, "image_url", path)
    inline = _DATA_URL.fullmatch(url)
    if inline:
        media, data = inline.groups()
        if media not in IMAGE_TYPES:
            raise inexpressible(media, f"{MESSAGES} as an image", path, fix=_IMAGE_FIX)
        return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
    if not url.startswith(("https://", "http://")):
        raise inexpressible("this kind of image_url", MESSAGES, path, fix="give an http(s) or a base64 data URL")
    return {"type": "image", "source": {"type": "url", "url": url}}


def _function_call_output(block: Json, path: str) -> Json:
    """Convert a tool result block; its content becomes one string, or a list of parts if it has more than text."""
    content = block.get("content")
    if content is None or isinstance(content, str):
        output: Any = content or ""
    else:
        output = []
        for part, location in iter_dicts(content, f"{path}.content"):
            output += _input_parts(part, text_at(part, "type", location), location)
        if all(part["type"] == "input_text" for part in output):
            output = "\n".join(part["text"] for part in output)
    return {"type": "function_call_output", "call_id": text_at(block, "tool_use_id", path), "output": output}


def _function_call(block: Json, path: str) -> Json:
    """Convert a tool use block to a function call item, and restore arguments that `tool_use_block` put under a key."""
    tool_input = dict_at(block, "input", path)
    unparsed = tool_input.get(UNPARSED_ARGUMENTS)
    is_unparsed = len(tool_input) == 1 and isinstance(unparsed, str)
    arguments = unparsed if is_unparsed else dump_json(tool_input, f"{path}.input")
    call_id = text_at(block, "id", path)
    name = text_at(block, "name", path)
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}


def tool_use_block(item: Json, path: str) -> Json:
    """Convert a function call item to a tool use block; arguments that are not a JSON object are put under a key."""
    arguments = text_at(item, "arguments", path)
    try:
        tool_input = parse_tool_arguments(arguments)
    except ValueError:
        tool_input = {UNPARSED_ARGUMENTS: arguments}
    call_id, name = text_at(item, "call_id", path), text_at(item, "name", path)
    return {"type": "tool_use", "id": call_id, "name": name, "input": tool_input}


def _reasoning(block: Json, path: str, new_id: NewId) -> Json:
    summary = [{"type": "summary_text", "text": text_at(block, "thinking", path)}]
    reasoning: Json = {"type": "reasoning", "id": new_id("rs"), "summary": summary}
    signature = optional_text_at(block, "signature", path)
    return reasoning | {"encrypted_content": signature} if signature else reasoning


def _thinking_blocks(item: Json, path: str) -> list[Json]:
    """Convert a reasoning item to a thinking block, or to a redacted one if it has no readable text."""
    encrypted = optional_text_at(item, "encrypted_content", path)
    if encrypted and not item.get("summary") and not item.get("content"):
        return [{"type": "redacted_thinking", "data": encrypted}]
    text = "\n".join(reasoning_texts(item, path))
    return [{"type": "thinking", "thinking": text, "signature": encrypted}] if text or encrypted else []
