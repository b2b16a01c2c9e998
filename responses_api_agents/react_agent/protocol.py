"""The text protocol: explain the tools, read what a model wrote, and show a conversation as text."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_gym.authoring.episode_agent import text_message
from nemo_gym.openai_utils import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseReasoningItem,
)
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.wire.base import TOKEN_FIELDS
from nemo_gym.wire.responses import training_variant_of

PROTOCOL = """You can use these tools:

{tools}

Use exactly this format:

Thought: what you need to do next
Action: the name of one tool
Action Input: its arguments as one JSON object

Then stop. The next message contains the output of the tool as "Observation: ...". Repeat this as often as needed.
When you know the answer, write:

Thought: why you are done
Final Answer: your answer"""
_ACTION = re.compile(r"^[ \t]*Action[ \t]*:(?P<name>[^\n(]*)$", re.MULTILINE)
_INPUT = re.compile(r"\s*Action[ \t]*Input[ \t]*:[ \t]*", re.MULTILINE)
_FINAL = re.compile(r"^[ \t]*Final[ \t]*Answer[ \t]*:[ \t]*", re.MULTILINE)
_OBSERVATION = re.compile(r"^[ \t]*Observation[ \t]*:", re.MULTILINE)
_THOUGHT = re.compile(r"\A\s*Thought[ \t]*:[ \t]*")
_FENCE = re.compile(r"\A```(?:json)?[ \t\r]*\n")


class ParsedText(NamedTuple):
    """A turn in the protocol: a thought, then a tool call or an answer."""

    thought: str
    tool: str | None
    arguments: str
    answer: str


def protocol_text(tools: Sequence[Any], instructions: str | None = None) -> str:
    """Return the explanation of the protocol with the tools of a request."""
    lines = []
    for tool in tools:
        fields = tool if isinstance(tool, dict) else tool.model_dump(exclude_unset=True)
        if fields.get("name"):
            schema = json.dumps(fields.get("parameters") or {}, ensure_ascii=False)
            lines.append(f"- {fields['name']}: {fields.get('description') or ''}\n  arguments: {schema}")
    return (instructions or PROTOCOL).replace("{tools}", "\n".join(lines))


def with_explanation(items: Sequence[Any], explanation: str) -> list[Any]:
    """Return items with the explanation in the first system message; many chat templates allow only one."""
    first, content = (items[0], getattr(items[0], "content", None)) if items else (None, None)
    if isinstance(content, str) and getattr(first, "role", None) in ("system", "developer"):
        merged = text_message(first.role, f"{content}\n\n{explanation}")  # type: ignore[union-attr]
        return [merged, *items[1:]]
    return [text_message("system", explanation), *items]


def parse_text(text: str) -> ParsedText:
    """Read the first action or the answer of a text; a text without either is an answer.

    What follows an `Observation:` of the model's own is dropped: the model invented it.
    """
    invented = _OBSERVATION.search(text)
    text = text[: invented.start()] if invented else text
    action, final = _ACTION.search(text), _FINAL.search(text)
    if action and (final is None or action.start() < final.start()):
        before = _THOUGHT.sub("", text[: action.start()]).strip()
        marker = _INPUT.match(text, action.end())
        rest = text[marker.end() :] if marker else ""
        return ParsedText(before, action["name"].strip(" \t\r`"), _json_text(rest), "")
    if final:
        return ParsedText(_THOUGHT.sub("", text[: final.start()]).strip(), None, "", text[final.end() :].strip())
    return ParsedText("", None, "", text.strip())


def _json_text(text: str) -> str:
    """Return the JSON value at the beginning of a text; all of it if it has none, so that the model learns of it."""
    text = text.strip()
    if fence := _FENCE.match(text):
        fenced, closing, _ = text[fence.end() :].partition("```")
        if closing:
            return fenced.strip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return text
    return text[:end]


def parse_turn(output: Sequence[Any], number: int) -> list[Any]:
    """Return the items of a turn with its text replaced by reasoning, and a function call or a message."""
    messages = [item for item in output if isinstance(item, NeMoGymResponseOutputMessage)]
    text = "".join(getattr(part, "text", "") for message in messages for part in message.content)
    parsed = parse_text(text)
    if not messages or (parsed.tool is None and not parsed.answer):
        return list(output)
    last = messages[-1]
    items: list[Any] = [item for item in output if item not in messages]
    if parsed.thought:
        summary = [{"type": "summary_text", "text": parsed.thought}]
        items.append(NeMoGymResponseReasoningItem(id=f"rs_{last.id}", summary=summary, type="reasoning"))
    if parsed.tool is not None:
        rollout = current_rollout_id() or "call"
        call = {"name": parsed.tool, "arguments": parsed.arguments, "call_id": f"{rollout}_react_{number}"}
        items.append(_with_tokens(NeMoGymResponseFunctionToolCall, {**call, "type": "function_call"}, last))
        return items
    content = [{"type": "output_text", "text": parsed.answer, "annotations": []}]
    fields = {"id": last.id, "role": "assistant", "status": last.status, "type": "message", "content": content}
    items.append(_with_tokens(NeMoGymResponseOutputMessage, fields, last))
    return items


def _with_tokens(item_class: Any, fields: dict[str, Any], source: Any) -> Any:
    """Return an item with the token fields of the message that it is made of."""
    tokens = {name: value for name in TOKEN_FIELDS if (value := getattr(source, name, None)) is not None}
    return (training_variant_of(item_class) if tokens else item_class).model_validate({**fields, **tokens})


@dataclass
class Transcript:
    """What the model wrote, so that the next prompt repeats it exactly."""

    texts: dict[int, list[Any]] = field(default_factory=dict)
    """The output of the model by the identity of the first item that stands for it."""
    _parsed: list[list[Any]] = field(default_factory=list)
    """Keeps the items alive, whose identities are keys."""

    def add(self, items: list[Any], response: NeMoGymResponse) -> list[Any]:
        """Remember the output that items stand for, and return the items."""
        if items:
            self._parsed.append(items)
            self.texts[id(items[0])] = list(response.output)
            self.texts |= {id(item): [] for item in items[1:]}
        return items

    def as_text(self, items: Sequence[Any]) -> list[Any]:
        """Return a conversation without calls: the model's own output, and outputs of tools as observations."""
        result: list[Any] = []
        for item in items:
            if id(item) in self.texts:
                result += self.texts[id(item)]
            elif isinstance(item, NeMoGymFunctionCallOutput):
                output = item.output if isinstance(item.output, str) else json.dumps(item.output, default=str)
                result.append(text_message("user", f"Observation: {output}"))
            elif isinstance(item, NeMoGymResponseFunctionToolCall):  # of the row: an example of an earlier turn
                text = f"Action: {item.name}\nAction Input: {item.arguments}"
                result.append(text_message("assistant", text))
            else:
                result.append(item)
        return result
