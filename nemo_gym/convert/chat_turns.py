"""Responses items → Chat messages: what the assistant says in a row becomes one message.

Not part of a prompt, and left behind on purpose: an item's `id` and `status`, an output text's `annotations` and
`logprobs`, and a reasoning item's ciphertext when its text is there. A reasoning item with both a summary and full
content is told by its summary.
"""

from dataclasses import dataclass, field

from nemo_gym.convert.parts import content_to_chat, plain_text, text_parts_only
from nemo_gym.convert.shapes import CHAT, Json, as_list, each_dict, optional_list_at, text_at, unsayable
from nemo_gym.convert.thinking import wrap_in_think_tags
from nemo_gym.convert.tokens import token_fields_of
from nemo_gym.errors import ConversionError


@dataclass
class ChatTurns:
    """Chat messages under construction; assistant-side items wait in the buffers until somebody else speaks."""

    return_token_id_information: bool = False
    messages: list[Json] = field(default_factory=list)
    content_buffer: str = ""
    refusal_buffer: str = ""
    tool_calls_buffer: list[Json] = field(default_factory=list)
    token_information: Json | None = None
    """Token fields of the last buffered item, if it has any."""
    spoke: bool = False
    """An assistant message is buffered, even if its text is empty."""

    def flush_assistant(self) -> None:
        """Close the assistant's turn: one message, or none when nothing was said."""
        if self.content_buffer or self.tool_calls_buffer or self.refusal_buffer or self.spoke:
            # Chat wants a content unless there is something else to read.
            nothing = None if self.tool_calls_buffer or self.refusal_buffer else ""
            message: Json = {"role": "assistant", "content": self.content_buffer or nothing}
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
        self.spoke = False


def add_item(turns: ChatTurns, item: Json, where: str) -> None:
    """Say one Responses item in Chat."""
    kind = item_kind(item, where)
    if kind == "message":
        if _role(item, where) == "assistant":
            _add_assistant_message(turns, item, where)
        else:
            _add_message(turns, item, where)
            return
    elif kind == "reasoning":
        turns.content_buffer += wrap_in_think_tags(reasoning_texts(item, CHAT, where))
    elif kind == "function_call":
        turns.tool_calls_buffer.append(_tool_call(item, where))
    elif kind == "function_call_output":
        _add_tool_result(turns, item, where)
        return
    else:
        raise unsayable(kind, CHAT, where)
    if turns.return_token_id_information:
        turns.token_information = token_fields_of(item, where) or None


def item_kind(item: Json, where: str) -> str:
    """An item's type; the shorthand message forms leave it out."""
    kind = item.get("type")
    if kind is None:
        if item.get("role") is None:
            raise ConversionError("has neither a type nor a role", where=where)
        return "message"
    if not isinstance(kind, str):
        raise ConversionError("type is not a string", where=where)
    return kind


def reasoning_texts(item: Json, dialect: str, where: str) -> list[str]:
    """The readable text of a reasoning item, piece by piece: its summary, or without one its content."""
    for key in ("summary", "content"):
        parts = optional_list_at(item, key, where)
        if parts:
            return [text_at(part, "text", place) for part, place in each_dict(parts, f"{where}.{key}")]
    if item.get("encrypted_content"):
        raise unsayable(
            "reasoning that is only encrypted", dialect, where, fix="leave reasoning items out of the input"
        )
    return []


def _role(item: Json, where: str) -> str:
    role = text_at(item, "role", where)
    if role not in ("user", "assistant", "system", "developer", "tool"):
        raise unsayable(role, f"{CHAT} as a role", where)
    return role


def _add_message(turns: ChatTurns, item: Json, where: str) -> None:
    turns.flush_assistant()
    message = {"role": item["role"], "content": content_to_chat(item.get("content"), where)}
    if item["role"] == "tool":
        message["tool_call_id"] = text_at(item, "tool_call_id", where)
    turns.messages.append(message)


def _add_assistant_message(turns: ChatTurns, item: Json, where: str) -> None:
    turns.spoke = True
    content = item.get("content")
    if isinstance(content, str):
        turns.content_buffer += content
    elif content is not None:
        for part, place in each_dict(content, f"{where}.content"):
            _add_assistant_part(turns, part, place)
    for call, _ in each_dict(optional_list_at(item, "tool_calls", where), f"{where}.tool_calls"):
        turns.tool_calls_buffer.append(call)


def _add_assistant_part(turns: ChatTurns, part: Json, where: str) -> None:
    kind = text_at(part, "type", where)
    if kind in ("output_text", "input_text"):
        turns.content_buffer += text_at(part, "text", where)
    elif kind == "refusal":
        turns.refusal_buffer += text_at(part, "refusal", where)
    else:
        raise unsayable(kind, f"an assistant message of {CHAT}", where)


def _tool_call(item: Json, where: str) -> Json:
    function = {"name": text_at(item, "name", where), "arguments": text_at(item, "arguments", where)}
    return {"id": text_at(item, "call_id", where), "type": "function", "function": function}


def _add_tool_result(turns: ChatTurns, item: Json, where: str) -> None:
    turns.flush_assistant()
    output = item.get("output")
    if not isinstance(output, str):
        output = text_parts_only(as_list(output, f"{where}.output"), f"{where}.output")
    turns.messages.append({"role": "tool", "tool_call_id": text_at(item, "call_id", where), "content": output})


def lead_with_instructions(messages: list[Json], instructions: str) -> list[Json]:
    """`messages` behind one system message that says `instructions` and what the leading system messages said."""
    said = [instructions]
    rest = 0
    for message in messages:
        text = plain_text(message.get("content"))
        if message.get("role") not in ("system", "developer") or text is None:
            break
        said.append(text)
        rest += 1
    return [{"role": "system", "content": "\n\n".join(said)}, *messages[rest:]]
