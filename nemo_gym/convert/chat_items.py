"""Chat messages → Responses items: one assistant message becomes reasoning, message and function calls.

Fields outside the Chat dialect (a provider's extras on a message) are left behind.
"""

from typing import Any

from nemo_gym.convert.parts import content_from_chat
from nemo_gym.convert.shapes import (
    RESPONSES,
    Json,
    NewId,
    as_dict,
    as_list,
    dict_at,
    each_dict,
    optional_list_at,
    optional_text_at,
    text_at,
    unsayable,
)
from nemo_gym.convert.thinking import SplitThoughts, parse_think_tags
from nemo_gym.convert.tokens import token_fields_of
from nemo_gym.errors import ConversionError


def items_from_messages(
    messages: Any, *, new_id: NewId, split_thoughts: SplitThoughts = parse_think_tags, with_tokens: bool = False
) -> list[Json]:
    """A Chat conversation as Responses items."""
    items: list[Json] = []
    for message, where in each_dict(messages, "messages"):
        role = text_at(message, "role", where)
        _refuse(message, ("name",), where)
        if role == "assistant":
            items += assistant_items(
                message, where, new_id=new_id, split_thoughts=split_thoughts, with_tokens=with_tokens
            )
        elif role == "tool":
            items.append(_tool_result(message, where))
        elif role in ("user", "system", "developer"):
            content = content_from_chat(message.get("content"), where)
            items.append({"type": "message", "role": role, "content": content})
        else:
            raise unsayable(role, f"{RESPONSES} as a role", where)
    return items


def assistant_items(
    message: Any,
    where: str,
    *,
    new_id: NewId,
    split_thoughts: SplitThoughts = parse_think_tags,
    with_tokens: bool = False,
) -> list[Json]:
    """What one assistant message says, item by item; its token fields go on the last item."""
    message = as_dict(message, where)
    _refuse(message, ("audio", "function_call"), where)
    text, refusal = _said(message, where)
    inline, text = split_thoughts(text)
    thoughts = _reasoning_fields(message, where) + inline
    calls = optional_list_at(message, "tool_calls", where)
    items: list[Json] = []
    if thoughts:
        summary = [{"type": "summary_text", "text": thought} for thought in thoughts]
        items.append({"type": "reasoning", "id": new_id("rs"), "summary": summary})
    if text or refusal or not (thoughts or calls):
        items.append(_output_message(text, refusal, message, where, new_id))
    items += [_function_call(call, place) for call, place in each_dict(calls, f"{where}.tool_calls")]
    if with_tokens:
        items[-1] |= token_fields_of(message, where)
    return items


def _output_message(text: str, refusal: str, message: Json, where: str, new_id: NewId) -> Json:
    content: list[Json] = []
    if text or not refusal:
        cited = optional_list_at(message, "annotations", where)
        annotations = [_annotation(cite, place) for cite, place in each_dict(cited, f"{where}.annotations")]
        content.append({"type": "output_text", "text": text, "annotations": annotations})
    if refusal:
        content.append({"type": "refusal", "refusal": refusal})
    return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed", "content": content}


def _annotation(annotation: Json, where: str) -> Json:
    kind = text_at(annotation, "type", where)
    if kind != "url_citation":
        raise unsayable(kind, f"{RESPONSES} as an annotation", where)
    return {"type": kind, **dict_at(annotation, kind, where)}


def _said(message: Json, where: str) -> tuple[str, str]:
    """The text and the refusal of an assistant message, whichever way they are written."""
    content = message.get("content")
    text, refusal = "", optional_text_at(message, "refusal", where)
    if isinstance(content, str):
        return content, refusal
    for part, place in each_dict(optional_list_at(message, "content", where), f"{where}.content"):
        kind = text_at(part, "type", place)
        if kind == "text":
            text += text_at(part, "text", place)
        elif kind == "refusal":
            refusal += text_at(part, "refusal", place)
        else:
            raise unsayable(kind, f"an assistant message of {RESPONSES}", place)
    return text, refusal


def _reasoning_fields(message: Json, where: str) -> list[str]:
    """Reasoning a server parsed out already; some send it under both names."""
    texts = [optional_text_at(message, key, where) for key in ("reasoning_content", "reasoning")]
    return [text for text in dict.fromkeys(texts) if text]


def _function_call(call: Json, where: str) -> Json:
    kind = call.get("type") or "function"
    if kind != "function":
        raise unsayable(kind, f"{RESPONSES} as a function call", where)
    function = dict_at(call, "function", where)
    call_id = text_at(call, "id", where)
    return {
        "type": "function_call",
        "id": call_id,
        "call_id": call_id,
        "name": text_at(function, "name", f"{where}.function"),
        "arguments": text_at(function, "arguments", f"{where}.function"),
        "status": "completed",
    }


def _tool_result(message: Json, where: str) -> Json:
    output = content_from_chat(message.get("content"), where)
    return {"type": "function_call_output", "call_id": text_at(message, "tool_call_id", where), "output": output}


def _refuse(message: Json, keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if message.get(key) is not None:
            raise unsayable(key, RESPONSES, where)


def only_choice(completion: Json) -> Json:
    """The one choice of a completion; the Responses API knows no others."""
    choices = as_list(completion.get("choices"), "choices")
    if len(choices) != 1:
        raise ConversionError(
            f"a response is made from one choice, got {len(choices)}", where="choices", fix="ask with n=1"
        )
    return as_dict(choices[0], "choices[0]")
