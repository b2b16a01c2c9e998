"""Parse replies of vLLM: reasoning, token ids and log-probabilities."""

import math
from collections.abc import Sequence
from typing import Any

from nemo_gym.convert.json_access import warn_once
from nemo_gym.convert.thought_splitter import BEGIN, END
from nemo_gym.errors import ModelFailed
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponse
from nemo_gym.serve.chat_engines import first_choice
from nemo_gym.wire.base import GENERATION_FIELDS, REQUIRED_TOKEN_FIELDS, TOKEN_FIELDS, has_token_fields

Json = dict[str, Any]

TOKEN_ID = "token_id:"
_ROUNDING = 1e-5
"""Difference between two texts of one log-probability."""


def separate_reasoning(message: Json) -> None:
    """Put the reasoning that the endpoint parsed into `reasoning_content`, where clients read it.

    In a text that the endpoint did not parse, add the opening tag that the chat template had written.
    """
    fields = [message.pop(name, None) for name in ("reasoning_content", "reasoning")]
    reasoning = next((text for text in fields if text), None)
    content = message.get("content") or ""
    if reasoning:
        message["reasoning_content"] = reasoning
    elif isinstance(content, str) and END in content and BEGIN not in content[: content.find(END)]:
        message["content"] = BEGIN + content


def with_closed_thought(completion: NeMoGymChatCompletion) -> NeMoGymChatCompletion:
    """Return a completion whose text closes its last thought, which the limit of the answer has cut off."""
    choice = completion.choices[0]
    content = choice.message.content or ""
    if BEGIN not in content or content.rfind(END) > content.rfind(BEGIN):
        return completion
    message = choice.message.model_copy(update={"content": content + END})
    return completion.model_copy(update={"choices": [choice.model_copy(update={"message": message})]})


def engine_token_fields(reply: Json, choice: Json) -> Json:
    """Return the token ids as vLLM itself reports them (`return_token_ids`)."""
    prompts = [holder.get("prompt_token_ids") for holder in (reply, choice)]
    prompt = next((ids for ids in prompts if ids is not None), None)
    return {"prompt_token_ids": prompt, "token_ids": choice.get("token_ids")}


def restore_engine_fields(reply: Json, choice: Json, fields: Json) -> None:
    """Put the token ids back where vLLM reports them, for a caller that requested them."""
    if fields["prompt_token_ids"] is not None:
        reply["prompt_token_ids"] = fields["prompt_token_ids"]
    if fields["token_ids"] is not None:
        choice["token_ids"] = fields["token_ids"]


def take_token_fields(reply: Json, choice: Json, where: str) -> Json:
    """Remove the token fields from a reply and return them, without `prompt_token_ids` if the reply has none.

    vLLM puts them into the message (endpoints for training), beside it (`return_token_ids`), or into the
    log-probabilities (`return_tokens_as_token_ids`). What several places report must be the same.

    Raises:
        ModelFailed: the reply has no token fields, more than one choice, or values that cannot be trained on.
    """
    if len(reply["choices"]) > 1:
        raise _no_tokens(f"the endpoint gave {len(reply['choices'])} answers, and a trainer needs one", where)
    message = choice["message"]
    in_message = {name: message.pop(name) for name in TOKEN_FIELDS if message.get(name) is not None}
    beside = _fields_beside_message(reply, choice, where, need_ids="generation_token_ids" not in in_message)
    for name in in_message.keys() & beside.keys():
        _check_equal(name, in_message[name], beside[name], where)
    fields = beside | in_message
    ids, log_probs = fields["generation_token_ids"], fields["generation_log_probs"]
    usage = reply.get("usage") or {}
    has_answer = any(message.get(name) for name in ("content", "tool_calls", "reasoning", "reasoning_content"))
    if not ids and not log_probs and (has_answer or usage.get("completion_tokens")):
        raise _no_tokens("the endpoint gave an answer without token ids and log-probabilities", where)
    if len(ids) != len(log_probs):
        raise _no_tokens(f"the endpoint gave {len(ids)} token ids and {len(log_probs)} log-probabilities", where)
    check_numbers(fields, where)
    return fields


def _fields_beside_message(reply: Json, choice: Json, where: str, *, need_ids: bool) -> Json:
    """Remove the token fields beside the message and return them; ids in log-probabilities are read if needed."""
    prompt = [holder.pop("prompt_token_ids", None) for holder in (reply, choice)]
    fields: Json = {"prompt_token_ids": next((ids for ids in prompt if ids is not None), None)}
    fields["generation_token_ids"] = choice.pop("token_ids", None)
    fields["routed_experts"] = choice.pop("routed_experts", None)
    entries = (choice.get("logprobs") or {}).get("content")
    if entries is not None or need_ids:
        fields["generation_log_probs"] = [_log_prob(entry, where) for entry in entries or []]
    if fields["generation_token_ids"] is None and need_ids:
        fields["generation_token_ids"] = [_token_id(entry, where) for entry in entries or []]
    return {name: value for name, value in fields.items() if value is not None}


def take_generation_fields(reply: Json, choice: Json, keep: Sequence[str] = ()) -> Json:
    """Return what an engine reports about a generation besides its tokens; fields that no client needs are removed.

    The fields are in the message (Megatron), in the choice (vLLM) or in the reply; `keep` names further ones.
    """
    message = choice["message"]
    fields: Json = {}
    for name in GENERATION_FIELDS:
        values = [message.pop(name, None), choice.get(name)]
        if name not in ("finish_reason", "stop_reason"):
            values += [choice.pop(name, None), reply.pop(name, None)]
        value = next((value for value in values if value is not None), None)
        if value is not None:
            fields[name] = value
    spans = choice.pop("weight_versions", None)
    version = fields.pop("weight_version", [span.get("version") for span in spans or []])
    fields |= weight_version_field(version)
    kept = {name: holder[name] for holder in (choice, message) for name in keep if holder.get(name) is not None}
    if kept:
        fields["engine_fields"] = kept
    return fields


def weight_version_field(reported: Any) -> Json:
    """Return `weight_version` as a number, or the oldest and the newest; empty without a version.

    vLLM reports texts, and `default` before the first update of the weights.
    """
    labels = reported if isinstance(reported, list) else [reported]
    try:
        versions = [int(label) for label in labels if label not in (None, "default")]
    except (TypeError, ValueError):
        warn_once(f"the weight version {labels!r} is not a number; it is not recorded")
        return {}
    if not versions:
        return {}
    oldest, newest = min(versions), max(versions)
    return {"weight_version": oldest if oldest == newest else [oldest, newest]}


def check_numbers(fields: Json, where: str) -> None:
    """Raise an error unless the ids are not negative and the log-probabilities are finite numbers.

    The sum, computed at C speed, shows the type and whether a number is not finite; prompts have thousands of ids.
    """
    for name in ("prompt_token_ids", "generation_token_ids"):
        ids = fields.get(name) or []
        if not isinstance(ids, list) or not _are_ids(ids):
            raise _no_tokens(f"the endpoint gave {name} that are not token ids", where)
    log_probs = fields["generation_log_probs"]
    try:
        if math.isfinite(sum(log_probs)):
            return
    except TypeError:  # a text among the numbers
        pass
    for position, value in enumerate(log_probs):
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise _no_tokens(f"the endpoint gave the log-probability {value!r} for generated token {position}", where)


def _are_ids(numbers: list[Any]) -> bool:
    try:
        return not numbers or (type(sum(numbers)) is int and min(numbers) >= 0)
    except TypeError:
        return False


def check_native_items(items: Sequence[Any], where: str) -> list[Json]:
    """Return the output items with token fields of a native Responses reply.

    Raises:
        ModelFailed: no item has token fields, or their values cannot be trained on.
    """
    carriers = [item for item in items if isinstance(item, dict) and has_token_fields(item)]
    if not carriers:
        problem = "the endpoint's /v1/responses gave no token ids"
        raise ModelFailed(problem, where=where, fix="set is_responses_native: false, so that they can be requested")
    for item in carriers:
        missing = [name for name in REQUIRED_TOKEN_FIELDS if not isinstance(item.get(name), list)]
        if missing:
            raise _no_tokens(f"the endpoint gave token fields without {', '.join(missing)}", where)
        ids, log_probs = item["generation_token_ids"], item["generation_log_probs"]
        if len(ids) != len(log_probs):
            raise _no_tokens(f"the endpoint gave {len(ids)} token ids and {len(log_probs)} log-probabilities", where)
        check_numbers(item, where)
    return carriers


def _check_equal(name: str, first: Any, second: Any, where: str) -> None:
    """Raise an error if message and reply report different values; log-probabilities may be rounded differently."""
    is_equal = first == second
    if not is_equal and name == "generation_log_probs" and len(first) == len(second):
        is_equal = all(abs(left - right) < _ROUNDING for left, right in zip(first, second, strict=True))
    if not is_equal:
        raise _no_tokens(f"the endpoint gave different {name} in the message and beside it", where)


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
    content = [{"token": token, "logprob": value, "bytes": None, "top_logprobs": []} for token, value in pairs]
    choice["message"] = {"role": "assistant", "content": choice.pop("text", "")}
    choice["logprobs"] = {"content": content} if content else None
    choice["finish_reason"] = choice.get("finish_reason") or "stop"
    choice["index"] = choice.get("index", 0)
    return {**reply, "object": "chat.completion", "choices": [choice]}


def with_last_item(events: list[Json], response: NeMoGymResponse) -> list[Json]:
    """Return the last events of a streamed answer with the token fields of its last item, if it has any."""
    if not events or not response.output or events[-1].get("type") != "response.output_item.done":
        return events
    last = response.output[-1].model_dump(mode="json", exclude_none=True)
    fields = {name: last[name] for name in (*TOKEN_FIELDS, *GENERATION_FIELDS) if name in last}
    if not fields or events[-1]["item"].get("id") != last.get("id"):
        return events
    return [*events[:-1], {**events[-1], "item": {**events[-1]["item"], **fields}}]
