"""Parse replies of vLLM: reasoning, token ids, log-probabilities, and the refusal that means "too long"."""

from time import time
from typing import Any
from uuid import uuid4

from aiohttp import ClientResponseError

from nemo_gym.convert.chat_conversation import wrap_in_think_tags
from nemo_gym.errors import ModelFailed
from nemo_gym.wire.base import REQUIRED_TOKEN_FIELDS, TOKEN_FIELDS

Json = dict[str, Any]

TOKEN_ID = "token_id:"
_TOO_LONG = (b"context length", b"max_tokens", b"maximum model length")


def is_too_long(refusal: ClientResponseError) -> bool:
    """Return whether the endpoint refused because prompt and reply do not fit into the model's context."""
    text = getattr(refusal, "response_content", b"")
    return refusal.status == 400 and isinstance(text, bytes) and any(words in text.lower() for words in _TOO_LONG)


def empty_completion(model: str) -> Json:
    """Build an empty completion that ended by `length`, for a prompt that leaves no space for a reply."""
    message = {"role": "assistant", "content": ""}
    return {
        "id": f"chatcmpl_{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time()),
        "model": model,
        "choices": [{"index": 0, "finish_reason": "length", "message": message}],
    }


def first_choice(reply: Json, where: str) -> Json:
    """Return the first choice of a reply.

    Raises:
        ModelFailed: the reply has no choices.
    """
    choices = reply.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    raise ModelFailed(
        "the endpoint's answer has no choices", where=where, fix="check base_url: does it speak the OpenAI API?"
    )


def put_reasoning_inline(message: Json) -> None:
    """Put the reasoning that the endpoint parsed back before the text, in `<think>` tags."""
    fields = [message.pop(name, None) for name in ("reasoning_content", "reasoning")]
    reasoning = next((text for text in fields if text), None)
    content = message.get("content") or ""
    if reasoning:
        message["content"] = wrap_in_think_tags([reasoning]) + content
    elif isinstance(content, str) and "</think>" in content and "<think>" not in content:
        message["content"] = "<think>" + content  # the chat template had written the opening tag


def take_token_fields(reply: Json, choice: Json, where: str) -> Json:
    """Remove the token fields from a reply and return them, without `prompt_token_ids` if the reply has none.

    vLLM puts them into the message (endpoints for training), beside it (`return_token_ids`), or into the
    log-probabilities (`return_tokens_as_token_ids`).

    Raises:
        ModelFailed: the reply has no token fields, or they are inconsistent.
    """
    message = choice["message"]
    bundle = {name: message.pop(name) for name in TOKEN_FIELDS if message.get(name) is not None}
    prompt = [holder.pop("prompt_token_ids", None) for holder in (reply, choice)]
    written = choice.pop("token_ids", None)
    routed = choice.pop("routed_experts", None)
    if all(name in bundle for name in REQUIRED_TOKEN_FIELDS):
        return _check_lengths(bundle, where)
    entries = (choice.get("logprobs") or {}).get("content") or []
    ids = written if written is not None else [_token_id(entry, where) for entry in entries]
    fields: Json = {"generation_token_ids": ids, "generation_log_probs": [_log_prob(entry, where) for entry in entries]}
    prompt_ids = next((ids for ids in prompt if ids is not None), None)
    if prompt_ids is not None:
        fields["prompt_token_ids"] = prompt_ids
    if routed is not None:
        fields["routed_experts"] = routed
    if choice.get("logprobs") is None and message.get("content"):
        raise _no_tokens("the endpoint gave no log-probabilities", where)
    return _check_lengths(fields, where)


def _token_id(entry: Json, where: str) -> int:
    """Parse the id of a token written as `token_id:<n>`."""
    token = str(entry.get("token"))
    try:
        return int(token.removeprefix(TOKEN_ID)) if token.startswith(TOKEN_ID) else int(entry["token_id"])
    except (KeyError, ValueError):
        raise _no_tokens(f"the endpoint gave a token without its id: {token!r}", where) from None


def _log_prob(entry: Json, where: str) -> float:
    value = entry.get("logprob")
    if isinstance(value, int | float):
        return float(value)
    raise _no_tokens(f"the endpoint gave a token without its log-probability: {entry.get('token')!r}", where)


def _check_lengths(fields: Json, where: str) -> Json:
    ids, log_probs = fields["generation_token_ids"], fields["generation_log_probs"]
    if len(ids) != len(log_probs):
        raise _no_tokens(f"the endpoint gave {len(ids)} token ids and {len(log_probs)} log-probabilities", where)
    return fields


def _no_tokens(problem: str, where: str) -> ModelFailed:
    return ModelFailed(
        problem,
        where=where,
        fix="set request_prompt_and_generation_token_ids for vLLM 0.10.2 or later, "
        "or return_token_id_information: false if the rollouts are not used for training",
    )


def chat_from_completion(reply: Json, where: str) -> Json:
    """Convert a text completion to a chat completion."""
    choice = dict(first_choice(reply, where))
    logprobs = choice.pop("logprobs", None) or {}
    pairs = zip(logprobs.get("tokens") or [], logprobs.get("token_logprobs") or [], strict=False)
    content = [{"token": token, "logprob": value or 0.0, "bytes": None, "top_logprobs": []} for token, value in pairs]
    choice["message"] = {"role": "assistant", "content": choice.pop("text", "")}
    choice["logprobs"] = {"content": content} if content else None
    choice["finish_reason"] = choice.get("finish_reason") or "stop"
    choice["index"] = choice.get("index", 0)
    return {**reply, "object": "chat.completion", "choices": [choice]}
