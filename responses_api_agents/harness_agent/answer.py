"""Build the response of a rollout from the conversation and the final text of a program."""

import time
from typing import Any

from nemo_gym.convert.json_access import new_id
from nemo_gym.convert.responses_chat import empty_response
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from responses_api_agents.harness_agent.conversation import Trace


def prompt_text(params: NeMoGymResponseCreateParamsNonStreaming) -> str:
    """Return the task as text: the instructions and the texts of all messages of the row, in order.

    Messages are labelled with their roles if some of them are of the assistant.
    """
    messages = [params.input] if isinstance(params.input, str) else params.input
    roles = {getattr(message, "role", None) for message in messages}
    texts = [params.instructions or ""]
    for message in messages:
        text = message if isinstance(message, str) else _message_text(getattr(message, "content", None))
        label = str(getattr(message, "role", "")).capitalize() if "assistant" in roles else ""
        texts.append(f"{label}: {text}" if label and text else text)
    prompt = "\n\n".join(text for text in texts if text)
    return prompt.encode(errors="replace").decode()  # JSON may contain halves of characters, which programs cannot read


def _message_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(filter(None, (str(getattr(part, "text", None) or _text_of(part)) for part in content or ())))


def _text_of(part: Any) -> str:
    return str(part.get("text") or "") if isinstance(part, dict) else ""


def last_characters(text: str, count: int) -> str:
    """Return the end of a text."""
    return text if len(text) <= count else f"…{text[-count:]}"


def build_response(
    params: NeMoGymResponseCreateParamsNonStreaming, trace: Trace | None, final_text: str | None
) -> NeMoGymResponse:
    """Return the response of a rollout: what the model wrote and the tools answered in the main conversation.

    A final text that the program reported and that the model did not write as its last message is added as a message.
    """
    items = [] if trace is None else [_output_item(item) for item in trace.items_after_prompt]
    text = trace.final_text() if trace is not None else ""
    if final_text and " ".join(final_text.split()) != " ".join(text.split()):
        items.append(_message(final_text))
    response = empty_response(new_id("resp"), int(time.time()), params.model or "model")
    return NeMoGymResponse.model_validate(response | {"output": items, "status": "completed"})


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed", "content": content}


def _output_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item of a request as an item of an answer: messages of the assistant have ids and output parts."""
    if item.get("type") != "message":
        if item.get("type") == "reasoning":
            return {**item, "id": item.get("id") or new_id("rs"), "summary": item.get("summary") or []}
        return item
    content = item.get("content")
    if item.get("role") != "assistant":
        return item
    texts = (
        [content]
        if isinstance(content, str)
        else [str(part.get("text") or part.get("refusal") or "") for part in content or ()]
    )
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    status = {"status": "completed", "id": item.get("id") or new_id("msg")}
    return {"type": "message", "role": "assistant", **status, "content": parts}
