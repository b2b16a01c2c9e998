"""The requests of the token transport: render the prompt, generate from token ids, and parse the answer.

These endpoints of vLLM need `--enable-scale-out`. The prompt is rendered by the engine, so that its chat template and
tokenizer are used, and sent back as token ids after `token_splice` has put in the tokens of earlier turns.
"""

from time import time
from typing import Any
from uuid import uuid4

from aiohttp import ClientResponseError

from nemo_gym.errors import ModelFailed
from responses_api_models.vllm_model.token_splice import SplicedPrompt, TokenIds

Json = dict[str, Any]

NO_SUCH_ENDPOINT = frozenset({404, 405, 501})
"""Statuses of an engine without the endpoints of the token transport."""
DECODING_CONTEXT = 16
"""Last tokens of the prompt that the engine needs to decode the first generated ones."""

_USER = {"role": "user", "content": "0"}
_PROBES: tuple[tuple[list[Json], bool], ...] = (
    ([_USER], False),
    ([_USER], True),
    ([_USER, {"role": "assistant", "content": "1"}], False),
    ([_USER, {"role": "assistant", "content": "2"}], False),
)


def is_missing_endpoint(refusal: ClientResponseError) -> bool:
    """Return whether the engine has no token transport; vLLM also answers 404 for a model that does not exist."""
    text = getattr(refusal, "response_content", b"")
    return refusal.status in NO_SUCH_ENDPOINT and b"does not exist" not in text


def probe_requests(request: Json) -> list[Json]:
    """Build render requests that show what the chat template writes around an answer, for `TemplateEnds.of`."""
    shared = {key: request[key] for key in ("model", "chat_template", "chat_template_kwargs") if key in request}
    return [{**shared, "messages": messages, "add_generation_prompt": start} for messages, start in _PROBES]


def rendered_ids(reply: Json, where: str) -> TokenIds:
    """Return the token ids of a rendered prompt.

    Raises:
        ModelFailed: the reply has none.
    """
    ids = reply.get("token_ids")
    if isinstance(ids, list) and ids:
        return ids
    raise ModelFailed("the endpoint rendered a prompt without token ids", where=where)


def generate_request(rendered: Json, request: Json, spliced: SplicedPrompt | None) -> Json:
    """Build the request to generate from the rendered prompt, with the tokens of earlier turns if there are any."""
    sampling = dict(rendered.get("sampling_params") or {})
    # The engine has computed the largest length for the prompt it rendered; it computes it again for this prompt.
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    sampling.pop("max_tokens", None)
    if limit is not None:
        sampling["max_tokens"] = limit
    generate = {**rendered, "sampling_params": sampling, "stream": False}
    generate.pop("token_offsets", None)
    if spliced is None:
        return generate
    generate["token_ids"] = spliced.token_ids
    features = rendered.get("features")
    if features:
        placeholders = {
            modality: [{**part, "offset": spliced.position(part["offset"])} for part in parts]
            for modality, parts in (features.get("mm_placeholders") or {}).items()
        }
        generate["features"] = {**features, "mm_placeholders": placeholders}
    return generate


def text_ids(generate: Json, choice: Json) -> TokenIds:
    """Return the generated ids without the one that ended the answer, which is not part of its text."""
    is_ended = choice.get("finish_reason") == "stop" and not isinstance(choice.get("stop_reason"), str)
    keeps_end = generate["sampling_params"].get("include_stop_str_in_output")
    ids: TokenIds = choice["token_ids"]
    return ids[:-1] if is_ended and not keeps_end else ids


def empty_answer(request: Json, generation: Json) -> Json:
    """Build the parsed answer of a model that ended its turn at once; the engine does not parse zero tokens."""
    message = {"role": "assistant", "content": ""}
    head = {"object": "chat.completion", "model": request["model"], "created": int(time())}
    return {"id": generation.get("request_id") or uuid4().hex, **head, "choices": [{"message": message}]}


def derender_request(request: Json, generate: Json, generation: Json, choice: Json, *, decode: bool) -> Json:
    """Build the request to decode and parse the generated tokens. It does not repeat the conversation.

    With `decode`, the log-probabilities get the texts of their tokens. A reasoning parser reads from the whole prompt
    whether reasoning is open; otherwise the last tokens are enough.
    """
    prompt = generate["token_ids"]
    text = {"token_ids": text_ids(generate, choice), "logprobs": choice.get("logprobs") if decode else None}
    answer = {**generation, "choices": [{**choice, **text}]}
    answer["prompt_token_ids"] = prompt if generate.get("reasoning_parser_kwargs") else prompt[-DECODING_CONTEXT:]
    chat = {name: value for name, value in request.items() if name not in ("return_token_ids", "messages")}
    return {
        "model": request["model"],
        "generate_response": answer,
        "prompt_tokens": len(prompt),
        "chat_request": {**chat, "messages": []},
    }


def chat_completion(parsed: Json, generation: Json, choice: Json, prompt: TokenIds, where: str) -> Json:
    """Combine the parsed message with the tokens of the generation to a chat completion as `return_token_ids` gives it.

    Raises:
        ModelFailed: the parsed answer has no message.
    """
    choices = parsed.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0].get("message"), dict):
        raise ModelFailed("the endpoint parsed the generated tokens to an answer without a message", where=where)
    message = {name: value for name, value in choices[0]["message"].items() if value is not None}
    finish, stop = choice.get("finish_reason"), choice.get("stop_reason")
    content = message.setdefault("content", None)
    if isinstance(stop, str) and isinstance(content, str) and stop in content:
        message["content"] = content[: content.rindex(stop)]  # the engine cuts there when it decodes the answer itself
    if not message.get("tool_calls"):
        message.pop("tool_calls", None)
    elif finish == "stop":
        finish = "tool_calls"
    return {
        **{name: value for name, value in parsed.items() if value is not None},
        "prompt_token_ids": prompt,
        "usage": generation.get("usage") or parsed.get("usage"),
        "choices": [
            {
                **{name: value for name, value in choice.items() if value is not None},
                "index": 0,
                "message": message,
                "finish_reason": finish or "stop",
                "logprobs": choices[0].get("logprobs") or choice.get("logprobs"),
            }
        ],
    }
