"""Keep what a provider sends beside a tool call and wants to see again with the tool's output.

Gemini signs its tool calls (`extra_content` of a call), OpenRouter returns `reasoning_details` of models that must see
their reasoning again, and litellm the `thinking_blocks` of Claude. The Responses API has no field for them. They travel
in a reasoning item without readable text, as its `encrypted_content`: agents send such items back unchanged, and other
endpoints leave them out.
"""

import json
from typing import Any
from uuid import uuid4

from nemo_gym.convert.json_access import to_dict
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseReasoningItem,
)
from nemo_gym.responses_converter import ResponsesConverter

Json = dict[str, Any]

ID_PREFIX = "rs_provider_"
DETAILS, THINKING, EXTRA = "reasoning_details", "thinking_blocks", "extra_content"
OF_CALLS = (EXTRA, "provider_specific_fields")
"""Fields of a tool call that the provider wants to see again."""
OF_MESSAGES = (DETAILS, THINKING)
"""Such fields of an answer."""
_TEXTS = ("text", "summary", "data")


def is_state_item(item: Json) -> bool:
    """Return whether an item of a conversation holds the state of a provider."""
    return item.get("type") == "reasoning" and str(item.get("id", "")).startswith(ID_PREFIX)


def state_of_message(message: Json) -> Json | None:
    """Return the provider's state of an answer with tool calls; None if nothing is to be sent back."""
    calls = {
        call["id"]: {name: call[name] for name in OF_CALLS if call.get(name)}
        for call in message.get("tool_calls") or []
        if call.get("id")
    }
    fields = {name: message[name] for name in OF_MESSAGES if message.get(name)}
    if not calls or not (fields or any(calls.values())):
        return None
    return {"calls": calls, "message": fields}


def restore_state(messages: list[Json], states: list[Json]) -> None:
    """Add the states to the assistant messages whose tool calls they belong to."""
    state_of = {call_id: state for state in states for call_id in state["calls"]}
    for message in messages:
        for call in message.get("tool_calls") or []:
            state = state_of.get(call.get("id"))
            if state is not None:
                call.update(state["calls"][call["id"]])
                message.update(state["message"])


class StatefulConverter(ResponsesConverter):
    """A converter that keeps the state of the provider in the conversation."""

    def responses_to_chat_completion_create_params(
        self, responses_create_params: Any
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        params = to_dict(responses_create_params)
        items = params.get("input")
        if not isinstance(items, list):
            return super().responses_to_chat_completion_create_params(params)
        states = [json.loads(item["encrypted_content"]) for item in items if is_state_item(item)]
        kept = [item for item in items if not is_state_item(item)]
        chat = super().responses_to_chat_completion_create_params({**params, "input": kept})
        if states:
            restore_state(chat.messages, states)  # type: ignore[arg-type]  # messages are open dictionaries
        return chat

    def chat_completion_to_response(self, responses_create_params: Any, chat_completion: Any) -> NeMoGymResponse:
        response = super().chat_completion_to_response(responses_create_params, chat_completion)
        state = state_of_message(to_dict(chat_completion)["choices"][0]["message"])
        if state is not None:
            item = {"type": "reasoning", "id": ID_PREFIX + uuid4().hex, "summary": []}
            text = json.dumps(state, ensure_ascii=False, separators=(",", ":"))
            response.output.append(NeMoGymResponseReasoningItem.model_validate(item | {"encrypted_content": text}))
        return response


class ReasoningDetails:
    """Joins the pieces of a provider's reasoning in a stream; without it the last piece would replace the others."""

    def __init__(self) -> None:
        self._details: dict[tuple[Any, Any], Json] = {}
        self._thoughts: list[Json] = []

    def add(self, chunk: Json) -> None:
        """Add the pieces in one chunk: texts are appended, other fields replaced."""
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            for piece in delta.get(DETAILS) or []:
                detail = self._details.setdefault((piece.get("index"), piece.get("type")), {})
                for name, value in piece.items():
                    is_text = name in _TEXTS and isinstance(value, str) and isinstance(detail.get(name), str)
                    if value is not None:
                        detail[name] = detail[name] + value if is_text else value
            for piece in delta.get(THINKING) or []:
                self._add_thought(piece)

    def _add_thought(self, piece: Json) -> None:
        """Add a piece of a thought, which ends with its signature; a redacted one comes as a whole."""
        is_thought = piece.get("type") == "thinking"
        last = self._thoughts[-1] if self._thoughts else {}
        if not is_thought or last.get("type") != "thinking" or last.get("signature"):
            self._thoughts.append({name: value for name, value in piece.items() if value is not None})
            return
        last["thinking"] = (last.get("thinking") or "") + (piece.get("thinking") or "")
        if piece.get("signature"):
            last["signature"] = piece["signature"]

    def with_details(self, completion: NeMoGymChatCompletion) -> NeMoGymChatCompletion:
        """Return the completion with the joined pieces."""
        joined = {DETAILS: list(self._details.values()), THINKING: self._thoughts}
        if not any(joined.values()):
            return completion
        answer = to_dict(completion)
        answer["choices"][0]["message"] |= {name: value for name, value in joined.items() if value}
        return NeMoGymChatCompletion.model_validate(answer)
