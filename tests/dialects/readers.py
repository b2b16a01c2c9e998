"""Ask a model server with the real client packages and reduce what they parse to a `Meaning`."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.dialects.strategies import Meaning, meaning_of_completion, meaning_of_message, meaning_of_response

types = pytest.importorskip("google.genai.types")
for package in ("openai", "anthropic"):
    pytest.importorskip(package)

Json = dict[str, Any]
MESSAGES = [{"role": "user", "content": "?"}]
FUNCTION: Json = {"name": "f", "description": "do it", "parameters": {"type": "object", "properties": {}}}


def responses_whole(servers: Any, server: str) -> Meaning:
    tools = [{"type": "function", "strict": False, **FUNCTION}]
    answer = servers.client("openai", server).responses.create(model="m", input="?", tools=tools)
    return meaning_of_response(answer.model_dump(mode="json"))


def responses_streamed(servers: Any, server: str) -> Meaning:
    """Read the events; the deltas must add up to the response of the last event."""
    texts: dict[tuple[str, str], str] = {}
    with servers.client("openai", server).responses.stream(model="m", input="?") as stream:
        for event in stream:
            if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
                key = (event.type, event.item_id)
                texts[key] = texts.get(key, "") + event.delta
        final = stream.get_final_response().model_dump(mode="json")
    for item in final["output"]:
        if item["type"] == "message":
            text = "".join(part["text"] for part in item["content"])
            assert texts.get(("response.output_text.delta", item["id"]), "") == text
        elif item["type"] == "function_call":
            assert texts.get(("response.function_call_arguments.delta", item["id"]), "") == item["arguments"]
    return meaning_of_response(final)


def chat_whole(servers: Any, server: str) -> Meaning:
    answer = servers.client("openai", server).chat.completions.create(model="m", messages=MESSAGES)
    return meaning_of_completion(answer.model_dump(mode="json"))


def chat_streamed(servers: Any, server: str) -> Meaning:
    """Read the chunks; the stream helper of the package refuses answers that reached the token limit."""
    create = servers.client("openai", server).chat.completions.create
    message: Json = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish, usage = None, None
    with create(model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                message["content"] += choice.delta.content or ""
                message["reasoning_content"] += getattr(choice.delta, "reasoning_content", None) or ""
                for call in choice.delta.tool_calls or []:
                    if call.id:
                        assert call.index == len(message["tool_calls"])
                        message["tool_calls"].append({"id": call.id, "function": {"name": "", "arguments": ""}})
                    function = message["tool_calls"][call.index]["function"]
                    function["name"] += call.function.name or ""
                    function["arguments"] += call.function.arguments or ""
    assert usage is not None
    choice = {"message": message, "finish_reason": finish}
    return meaning_of_completion({"choices": [choice], "usage": usage.model_dump(mode="json")})


def messages_whole(servers: Any, server: str) -> Meaning:
    answer = servers.client("anthropic", server).messages.create(model="m", max_tokens=100, messages=MESSAGES)
    return meaning_of_message(answer.model_dump(mode="json"))


def messages_streamed(servers: Any, server: str) -> Meaning:
    with servers.client("anthropic", server).messages.stream(model="m", max_tokens=100, messages=MESSAGES) as stream:
        return meaning_of_message(stream.get_final_message().model_dump(mode="json"))


_THOUGHTS = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(include_thoughts=True))


def gemini_whole(servers: Any, server: str) -> Meaning:
    answer = servers.client("gemini", server).models.generate_content(model="m", contents="?", config=_THOUGHTS)
    return meaning_of_gemini([answer])


def gemini_streamed(servers: Any, server: str) -> Meaning:
    models = servers.client("gemini", server).models
    return meaning_of_gemini(list(models.generate_content_stream(model="m", contents="?", config=_THOUGHTS)))


def meaning_of_gemini(chunks: list[types.GenerateContentResponse]) -> Meaning:
    """Return what an answer of Gemini says; the parts of a stream are joined."""
    candidates = [chunk.candidates[0] for chunk in chunks if chunk.candidates]
    parts = [part for each in candidates for part in (each.content.parts if each.content else None) or []]
    calls = [part.function_call for part in parts if part.function_call is not None]
    ends = {"STOP": "tool_calls" if calls else "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter"}
    finish = [each.finish_reason.value for each in candidates if each.finish_reason is not None]
    assert len(finish) == 1
    usage = next(chunk.usage_metadata for chunk in reversed(chunks) if chunk.usage_metadata)
    written = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    assert usage.total_token_count == (usage.prompt_token_count or 0) + written
    return Meaning(
        "".join(part.text or "" for part in parts if part.thought),
        "".join(part.text or "" for part in parts if not part.thought),
        tuple((call.id, call.name, json.dumps(call.args, sort_keys=True)) for call in calls),
        ends[finish[0]],
        (usage.prompt_token_count or 0, usage.cached_content_token_count or 0, written),
    )


Reader = Callable[[Any, str], Meaning]

READERS: dict[str, Reader] = {
    "responses whole": responses_whole,
    "responses streamed": responses_streamed,
    "messages whole": messages_whole,
    "messages streamed": messages_streamed,
    "gemini whole": gemini_whole,
    "gemini streamed": gemini_streamed,
}
CHAT_READERS: dict[str, Reader] = {"chat whole": chat_whole, "chat streamed": chat_streamed}
