"""Token memory: the token ids of earlier turns for a request whose harness has dropped them.

Many SDKs keep only the fields they know of an assistant message. The call that a request continues is known by its
lineage. Its tokens contain those of every turn before it; they go on the last item that the model wrote, where engines
expect them. A model server that writes prompts itself gets the position of every turn from `remembered_turns`.
"""

from typing import Any, NamedTuple

from pydantic import BaseModel

from nemo_gym.token_id_capture.context import CaptureContext, current_capture_context
from nemo_gym.token_id_capture.fingerprint import as_object, is_model_authored
from nemo_gym.token_id_capture.lineage import TurnSpan
from nemo_gym.wire.base import has_token_fields

Request = dict[str, Any] | BaseModel


class RememberedTurns(NamedTuple):
    """The tokens of a conversation up to its last answer, and where the model generated them, oldest turn first."""

    token_ids: list[int]
    turns: tuple[TurnSpan, ...]


def remembered_turns() -> RememberedTurns | None:
    """Return the captured turns that the model call being served continues; None if it continues none."""
    context = current_capture_context()
    match = context.resolution.match if context is not None else None
    return RememberedTurns(list(match.cumulative_token_ids), match.turns) if match is not None and match.turns else None


def restore_token_fields(body: Request, context: CaptureContext) -> Request:
    """Return a Responses or Chat request whose last model turn carries the tokens of the call that it continues.

    The request is returned unchanged if it continues no captured call or its last model turn has token fields.
    """
    match = context.resolution.match
    if match is None or not len(match.cumulative_token_ids) or not len(match.generation_log_probs):
        return body
    fields: Any = body.__dict__ if isinstance(body, BaseModel) else body
    key = "messages" if "messages" in fields else "input"
    turns = fields.get(key)
    index = _last_model_turn(turns) if isinstance(turns, list) else None
    if not isinstance(turns, list) or index is None:
        return body
    context.prefix_requested = True
    turn = turns[index]
    is_plain_model = isinstance(turn, BaseModel) and not turn.__pydantic_extra__
    if has_token_fields(turn.__dict__ if is_plain_model else as_object(turn)):
        return body
    tokens, length = list(match.cumulative_token_ids), len(match.generation_log_probs)
    dumped = body.model_dump(exclude_unset=True) if isinstance(body, BaseModel) else dict(body)
    restored = list(dumped[key])
    restored[index] = {
        **restored[index],
        "prompt_token_ids": tokens[:-length],
        "generation_token_ids": tokens[-length:],
        "generation_log_probs": list(match.generation_log_probs),
    }
    return {**dumped, key: restored}


def _last_model_turn(turns: list[Any]) -> int | None:
    for index in range(len(turns) - 1, -1, -1):
        if is_model_authored(turns[index]):
            return index
    return None
