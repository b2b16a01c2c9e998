"""Delivery: put the captured tokens of a rollout into its result, and delete the records when the result is stored."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from nemo_gym.keys import MASK_SAMPLE_KEY, NG_TOKEN_CAPTURE_KEY, NG_TOKEN_TRACES_KEY
from nemo_gym.serve.correlation import maybe_rollout_id_from_run_body
from nemo_gym.token_id_capture.builder import Chain
from nemo_gym.token_id_capture.consumer import Delivery, build_delivery, token_fields
from nemo_gym.token_id_capture.fingerprint import assistant_fingerprint, is_model_authored
from nemo_gym.token_id_capture.protocols import TokenCaptureSnapshot, TokenSource
from nemo_gym.token_id_capture.store import TokenCaptureStore
from nemo_gym.wire.base import GENERATION_FIELDS, has_token_fields

logger = logging.getLogger(__name__)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FinalizedCapture:
    """The snapshot that a result was built from."""

    rollout_id: str
    snapshot_id: str = ""
    version: int = 0
    masked: bool = False
    """The tokens are not proven; the records are kept."""


async def finalize_rollout_token_capture(
    result: Json, source: TokenSource, *, rollout_id: str | None = None
) -> FinalizedCapture:
    """Freeze the capture of a rollout and put its tokens into the result, in place.

    The result gets `_ng_token_capture` with counts, the main chain in `response.output` and further chains in
    `_ng_token_traces`. If the tokens cannot be proven, it gets `mask_sample` and the reason instead. A result that
    carries token ids keeps them and only gets the traces of calls that it does not carry.
    """
    rollout_id = rollout_id or maybe_rollout_id_from_run_body(result)
    if rollout_id is None:
        return _mask(result, FinalizedCapture("", masked=True), "no_rollout_id: the result names no rollout")
    carried = _carriers(result)
    try:
        if carried and isinstance(source, TokenCaptureStore):
            state = source.state_if_complete(rollout_id, len(carried))
            if state is not None:
                return FinalizedCapture(rollout_id, *state)
        snapshot = await source.freeze(rollout_id)
        finalized = FinalizedCapture(rollout_id, snapshot.snapshot_id, snapshot.version)
    except Exception as error:  # of any source; the rollout is kept and marked
        return _mask(result, FinalizedCapture(rollout_id, masked=True), f"freeze_failed: {error}", error=str(error))
    masked = FinalizedCapture(rollout_id, snapshot.snapshot_id, snapshot.version, masked=True)
    try:
        if carried:
            _add_uncarried_traces(result, snapshot, carried)
            return finalized
        delivery = build_delivery(snapshot, result)
        if delivery.mask_reason is None and delivery.main is not None:
            _put_main_chain(result, delivery.main)
    except Exception as error:  # of malformed records; the rollout is kept and marked
        logger.warning("the tokens of rollout %s cannot be delivered: %r", rollout_id, error)
        return _mask(result, masked, f"build_failed: {error}", error=str(error))
    result[NG_TOKEN_CAPTURE_KEY] = delivery.metrics
    if delivery.mask_reason is not None:
        captured = delivery.metrics["generated_tokens_captured"]
        delivery.metrics |= {
            "generated_tokens_delivered": 0,
            "delivered_fraction": 0.0,
            "left_out": {"masked": captured},
        }
        return _mask(result, masked, delivery.mask_reason)
    _put_traces(result, delivery)
    return finalized


async def retire_rollout_token_capture(finalized: FinalizedCapture, source: TokenSource) -> bool:
    """Delete the records of a stored result; False if they are kept: the result is masked, or they have changed."""
    if finalized.masked or not finalized.snapshot_id:
        return False
    return await source.drop(finalized.rollout_id, snapshot_id=finalized.snapshot_id, version=finalized.version)


def _mask(result: Json, finalized: FinalizedCapture, reason: str, *, error: str | None = None) -> FinalizedCapture:
    """Mark a result as not trainable, with the reason."""
    result[MASK_SAMPLE_KEY] = True
    details = {"mask_reason": reason, **({"error": error} if error else {})}
    result[NG_TOKEN_CAPTURE_KEY] = {**result.get(NG_TOKEN_CAPTURE_KEY, {}), **details}
    return finalized


def _output(result: Mapping[str, Any]) -> list[Any]:
    response = result.get("response")
    output = response.get("output") if _is_object(response) else None
    return output if isinstance(output, list) else []


def _is_object(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return type(value) is dict or isinstance(value, Mapping)


def _carriers(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the items of a result that carry token ids."""
    return [item for item in _output(result) if _is_object(item) and has_token_fields(item)]


def _add_uncarried_traces(result: Json, snapshot: TokenCaptureSnapshot, carriers: list[Mapping[str, Any]]) -> None:
    """Add the chains of captured calls that a result with token ids does not carry."""
    if len(snapshot.entries) <= len(carriers) and not snapshot.incomplete:
        return
    carried = {(*(item.get("prompt_token_ids") or ()), *(item.get("generation_token_ids") or ())) for item in carriers}
    delivery = build_delivery(snapshot, result)
    for chain in delivery.chains:
        chain.calls = [
            call for call in chain.calls if (*call.prompt_token_ids, *call.generation_token_ids) not in carried
        ]
        chain.name = "context-0" if chain.name == "main" else chain.name
    delivery.chains = [chain for chain in delivery.chains if chain.calls]
    result[NG_TOKEN_CAPTURE_KEY] = {**delivery.metrics, "carried_by_agent": True}
    _put_traces(result, delivery)


def _put_traces(result: Json, delivery: Delivery) -> None:
    traces = delivery.traces
    if traces:
        result[NG_TOKEN_TRACES_KEY] = traces


def _put_main_chain(result: Json, chain: Chain) -> None:
    """Set `response.output` to the output of the chain's calls with token fields.

    If the agent's output has the same model items, they are kept in place with the items between them. Otherwise the
    output is rebuilt from the calls, with the tool outputs of the agent's output after their calls.
    """
    response = result.get("response")
    fields = dict(response) if isinstance(response, Mapping) else {}
    output = _output(result)
    fields["output"] = _in_place(output, chain) or _rebuilt(output, chain)
    result["response"] = fields


def _call_items(chain: Chain) -> list[list[Json]]:
    """Return the output items of each call as Responses items, one of them with the token fields."""
    return [
        [
            item | (token_fields(call) if index == call.token_item_index else {})
            for index, item in enumerate(call.output_items or [{"type": "message", "role": "assistant", "content": []}])
        ]
        for call in chain.calls
    ]


def _in_place(output: list[Any], chain: Chain) -> list[Any] | None:
    """Return the agent's output with token fields; None if its model items differ from the chain."""
    positions = [index for index, item in enumerate(output) if isinstance(item, Mapping) and is_model_authored(item)]
    items = [item for call in _call_items(chain) for item in call if is_model_authored(item)]
    pairs = list(zip(positions, items, strict=False))
    is_same = len(positions) == len(items) and all(
        assistant_fingerprint([output[index]]) == assistant_fingerprint([item]) for index, item in pairs
    )
    carriers = sum(has_token_fields(item) for item in items)
    if not is_same or carriers != len(chain.calls):
        return None
    placed = list(output)
    for index, item in pairs:
        if has_token_fields(item):
            extra = {name: item[name] for name in GENERATION_FIELDS if name in item}
            placed[index] = {**output[index], **_token_part(item), **extra}
    return placed


def _token_part(item: Mapping[str, Any]) -> Json:
    names = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
    return {name: item[name] for name in names if item.get(name) is not None}


def _rebuilt(output: list[Any], chain: Chain) -> list[Any]:
    """Return the items of the chain's calls, each call followed by the outputs of its tools."""
    tool_outputs = {
        item.get("call_id"): item
        for item in output
        if isinstance(item, Mapping) and item.get("type") == "function_call_output"
    }
    items: list[Any] = []
    for call_items in _call_items(chain):
        responses_items = [part for item in call_items for part in _as_responses_items(item)]
        items += responses_items
        items += [
            tool_outputs[item["call_id"]]
            for item in responses_items
            if item.get("type") == "function_call" and item.get("call_id") in tool_outputs
        ]
    return items


def _as_responses_items(item: Json) -> list[Json]:
    """Return an item of a Responses output unchanged, and a chat message as Responses items."""
    if "type" in item:
        return [item]
    from nemo_gym.convert.chat_conversation import assistant_items  # only results of agents that speak Chat need it

    counter = iter(range(1_000_000))
    extra = {name: item[name] for name in GENERATION_FIELDS if name in item}
    items = assistant_items(item, "message", new_id=lambda prefix: f"{prefix}_{next(counter)}", with_tokens=True)
    items[-1] |= extra
    return items
