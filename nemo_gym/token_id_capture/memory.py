"""Token memory: put the token ids of earlier turns back on a request whose harness has dropped them.

Many SDKs keep only the fields they know of an assistant message. The call that a request continues is known by its
lineage; its tokens go on the last item that the model wrote, where engines and transports expect them.
"""

from collections.abc import Mapping
from typing import Any

from nemo_gym.token_id_capture.context import CaptureContext
from nemo_gym.token_id_capture.fingerprint import is_model_authored
from nemo_gym.wire.base import has_token_fields


def restore_token_fields(body: dict[str, Any], context: CaptureContext) -> dict[str, Any]:
    """Return a Responses or Chat request whose last model turn carries the tokens of the call that it continues.

    The request is returned unchanged if it continues no captured call or its last model turn has token fields.
    """
    match = context.resolution.match
    if match is None or not match.cumulative_token_ids or not match.generation_log_probs:
        return body
    key = "messages" if "messages" in body else "input"
    turns = body.get(key)
    index = _last_model_turn(turns) if isinstance(turns, list) else None
    if not isinstance(turns, list) or index is None:
        return body
    context.prefix_requested = True
    if has_token_fields(turns[index]):
        return body
    tokens, length = list(match.cumulative_token_ids), len(match.generation_log_probs)
    fields = {
        "prompt_token_ids": tokens[:-length],
        "generation_token_ids": tokens[-length:],
        "generation_log_probs": list(match.generation_log_probs),
    }
    restored = list(turns)
    restored[index] = {**turns[index], **fields}
    return {**body, key: restored}


def _last_model_turn(turns: list[Any]) -> int | None:
    for index in range(len(turns) - 1, -1, -1):
        if isinstance(turns[index], Mapping) and is_model_authored(turns[index]):
            return index
    return None
