"""An endpoint like that of a provider or vLLM: Chat Completions and Responses, whole or streamed, from a script.

It is independent of the converters under test. Texts and arguments are streamed in pieces; token ids are made up.
"""

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tools.clients.coding_task import next_turn

Json = dict[str, Any]
MODEL = "m"
PROMPT_TOKENS, ANSWER_TOKENS = [1, 2, 3, 4], [5, 6, 7]


def upstream_app() -> FastAPI:
    """Build the app of the endpoint."""
    app = FastAPI()

    @app.get("/v1/models")
    async def list_models() -> Json:
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "test"}]}

    @app.post("/tokenize")
    async def tokenize(_request: Request) -> Json:
        return {"tokens": PROMPT_TOKENS, "count": len(PROMPT_TOKENS), "max_model_len": 32768}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.json()
        messages = body["messages"]
        number = sum(message["role"] == "assistant" for message in messages)
        turn = next_turn(number, body.get("tools") or [], json.dumps(messages))
        if body.get("stream"):
            return _sse([*(json.dumps(chunk) for chunk in _chat_chunks(turn, number, body)), "[DONE]"])
        return JSONResponse(_completion(turn, number, body))

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        body = await request.json()
        items = body["input"] if isinstance(body["input"], list) else []
        by_model = [
            item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant" for item in items
        ]
        number = sum(now and not before for before, now in zip([False, *by_model], by_model, strict=False))
        turn = next_turn(number, body.get("tools") or [], json.dumps(items))
        response = _response(turn, number)
        if body.get("stream"):
            events = [{**event, "sequence_number": n} for n, event in enumerate(_response_events(response))]
            return _sse([json.dumps(event) for event in events], [event["type"] for event in events])
        return JSONResponse(response)

    return app


def _sse(payloads: list[str], names: list[str] | None = None) -> StreamingResponse:
    def lines() -> Iterator[str]:
        for index, payload in enumerate(payloads):
            yield (f"event: {names[index]}\n" if names else "") + f"data: {payload}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), 7):
        yield text[start : start + 7]


def _usage(*, chat: bool) -> Json:
    read, written = ("prompt_tokens", "completion_tokens") if chat else ("input_tokens", "output_tokens")
    usage: Json = {read: 20, written: 10, "total_tokens": 30}
    if not chat:
        usage |= {"input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 2}}
    return usage


def _tool_calls(turn: Json, number: int) -> list[Json]:
    return [
        {"id": f"call_{number}_{n}", "name": call["name"], "arguments": json.dumps(call["arguments"])}
        for n, call in enumerate(turn.get("tool_calls") or [])
    ]


def _completion(turn: Json, number: int, body: Json) -> Json:
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in _tool_calls(turn, number)
    ]
    message: Json = {"role": "assistant", "content": turn.get("text"), "reasoning_content": turn.get("reasoning")}
    message |= {"tool_calls": calls} if calls else {}
    choice: Json = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    answer: Json = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
        "usage": _usage(chat=True),
    }
    if body.get("logprobs"):
        content = [{"token": f"token_id:{token}", "logprob": -0.5, "top_logprobs": []} for token in ANSWER_TOKENS]
        choice["logprobs"] = {"content": content}
    if body.get("return_token_ids"):
        answer["prompt_token_ids"], choice["token_ids"] = PROMPT_TOKENS, ANSWER_TOKENS
    return answer


def _chat_chunks(turn: Json, number: int, body: Json) -> Iterator[Json]:
    completion = _completion(turn, number, body)
    choice = completion["choices"][0]
    head = {key: completion[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def chunk(delta: Json, **fields: Any) -> Json:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None, **fields}]}

    first = chunk({"role": "assistant", "content": ""})
    if "prompt_token_ids" in completion:
        first["prompt_token_ids"] = completion["prompt_token_ids"]
    yield first
    for key, text in (("reasoning_content", turn.get("reasoning")), ("content", turn.get("text"))):
        for piece in _pieces(text or ""):
            yield chunk({key: piece})
    for index, call in enumerate(choice["message"].get("tool_calls") or []):
        function = {"name": call["function"]["name"], "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]})
        for piece in _pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    tokens = {key: choice[key] for key in ("token_ids", "logprobs") if key in choice}
    yield chunk({}, **tokens) | {
        "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"], **tokens}]
    }
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": completion["usage"]}


def _response(turn: Json, number: int) -> Json:
    output: list[Json] = []
    if turn.get("reasoning"):
        summary = [{"type": "summary_text", "text": turn["reasoning"]}]
        output.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    if turn.get("text"):
        content = [{"type": "output_text", "text": turn["text"], "annotations": []}]
        message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        output.append({**message, "content": content})
    for call in _tool_calls(turn, number):
        item = {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], "status": "completed"}
        output.append({**item, "name": call["name"], "arguments": call["arguments"]})
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": _usage(chat=False),
    }


def _response_events(response: Json) -> Iterator[Json]:
    start = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": start}
    yield {"type": "response.in_progress", "response": start}
    for index, item in enumerate(response["output"]):
        place = {"item_id": item["id"], "output_index": index}
        empty = {"reasoning": {"summary": []}, "message": {"content": []}, "function_call": {"arguments": ""}}
        begun = {**item, **empty[item["type"]], **({"status": "in_progress"} if "status" in item else {})}
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        yield from _content_events(item, place)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": response}


def _content_events(item: Json, place: Json) -> Iterator[Json]:
    if item["type"] == "function_call":
        for piece in _pieces(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
        yield {"type": "response.function_call_arguments.done", **place, "arguments": item["arguments"]}
        return
    is_text = item["type"] == "message"
    part = item["content"][0] if is_text else item["summary"][0]
    place = {**place, "content_index" if is_text else "summary_index": 0}
    name, text_name = (
        ("content_part", "output_text") if is_text else ("reasoning_summary_part", "reasoning_summary_text")
    )
    yield {"type": f"response.{name}.added", **place, "part": {**part, "text": ""}}
    for piece in _pieces(part["text"]):
        yield {"type": f"response.{text_name}.delta", **place, "delta": piece, **({"logprobs": []} if is_text else {})}
    yield {
        "type": f"response.{text_name}.done",
        **place,
        "text": part["text"],
        **({"logprobs": []} if is_text else {}),
    }
    yield {"type": f"response.{name}.done", **place, "part": part}
