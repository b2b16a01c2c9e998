"""The capture of one model call: the context that the handler of a model server runs in, and its steps.

`resolve_parent` → `register_call_intent` → the model → `capture_tokens`. A capture that fails marks its rollout and
never fails the model call, except before the model is asked.
"""

import functools
import itertools
import logging
import os
import time
from array import array
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from nemo_gym.token_id_capture.fingerprint import (
    FINGERPRINT_VERSION,
    RequestItems,
    assistant_fingerprint,
    conversation_digest,
    text_fingerprints,
)
from nemo_gym.token_id_capture.lineage import (
    CachedCall,
    LineageEntry,
    LineageResolution,
    LineageResolver,
    UnresolvedReason,
    count_capture_failure,
    count_resolution,
    is_turn_closed,
    opening_texts,
    unresolved_because,
)
from nemo_gym.token_id_capture.protocols import TokenSink
from nemo_gym.token_id_capture.records import (
    SCHEMA_VERSION,
    ModelOutput,
    TokenEntry,
    TokenFields,
    TokenText,
    is_too_long,
    split_output,
    token_digest,
)
from nemo_gym.token_id_capture.store import TokenCaptureStore

logger = logging.getLogger(__name__)

_NOT_ATTEMPTED = unresolved_because(UnresolvedReason.NOT_ATTEMPTED)
NO_TOKEN_IDS = "the model server returned no token ids"
Items = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class CaptureContext:
    """One captured model call."""

    rollout_id: str
    model_call_id: str = field(default_factory=lambda: f"mc_{uuid4().hex}")
    token_sink: TokenSink | None = None
    lineage_store: LineageResolver | None = None
    delta_records: bool = False
    external_staging: bool = False
    admitted_at: float = field(default_factory=time.time)
    model_ref: str | None = None
    """Instance name of the model server."""
    resolution: LineageResolution = _NOT_ATTEMPTED
    request_items: Items = ()
    prefix_requested: bool = False
    """The request to the engine carries the tokens of the call that it continues."""
    has_prefix: bool = False
    """The prompt of the engine begins with these tokens."""
    admission: Any = None
    """With external staging: the `CaptureAdmission` for the worker."""
    commit: Any = None
    """With external staging: the coordinates that the worker returned."""
    captured: bool = False

    @property
    def parent_token_ids(self) -> Sequence[int]:
        """The tokens that the prompt of this call must begin with; empty if it continues no captured call."""
        return self.resolution.match.cumulative_token_ids if self.resolution.match is not None else ()


_context: ContextVar[CaptureContext | None] = ContextVar("nemo_gym_token_capture_context", default=None)


def current_capture_context() -> CaptureContext | None:
    """Return the capture of the model call being served; None if it is not captured."""
    return _context.get()


def set_token_sink(context: CaptureContext) -> Token[CaptureContext | None]:
    """Make a capture the current one; give the result to `reset_token_sink`."""
    return _context.set(context)


def reset_token_sink(token: Token[CaptureContext | None]) -> None:
    """Undo `set_token_sink`."""
    _context.reset(token)


async def resolve_parent(request_items: Items) -> LineageResolution | None:
    """Find the call that a request continues and remember it in the current capture; None without a capture.

    Raises:
        Exception: with external staging, a lookup that fails also fails the model call.
    """
    context = _context.get()
    if context is None:
        return None
    context.request_items = request_items
    if context.external_staging:
        from nemo_gym.token_id_capture.external_capture import admit_call  # this module is imported there

        context.resolution = await admit_call(context, request_items)
    elif context.lineage_store is None:
        context.resolution = unresolved_because(UnresolvedReason.RESOLVER_UNAVAILABLE)
    else:
        try:
            context.resolution = await context.lineage_store.resolve(context.rollout_id, request_items)
        except Exception as error:  # of any store; the rollout is masked, the call goes on
            logger.warning("the lineage of a call of rollout %s is unknown: %r", context.rollout_id, error)
            context.resolution = unresolved_because(UnresolvedReason.LOOKUP_ERROR)
    count_resolution(context.resolution.status)
    return context.resolution


async def register_call_intent() -> None:
    """Record that a call begins, if the sink can. A failure is raised: nothing is computed that could not be stored."""
    context = _context.get()
    begin = getattr(context.token_sink, "begin_call", None) if context is not None else None
    if context is None or begin is None or context.external_staging:
        return
    if getattr(context.token_sink, "needs_intents", True):
        await begin(context.rollout_id, context.model_call_id)


async def abandon_call() -> None:
    """Record that the call failed or was cancelled before it had a generation, if the sink can."""
    context = _context.get()
    abandon = getattr(context.token_sink, "abandon_call", None) if context is not None else None
    if context is None or abandon is None or context.captured or context.external_staging:
        return
    if not getattr(context.token_sink, "needs_intents", True):
        return
    try:
        await abandon(context.rollout_id, context.model_call_id)
    except Exception as error:  # of any sink; the call then counts as missing
        logger.warning("a failed call of rollout %s was not recorded: %r", context.rollout_id, error)


async def capture_tokens(response: Mapping[str, Any], request_messages: Items | None = None) -> None:
    """Store the generation of the current capture; mark the rollout incomplete if that is not possible."""
    context = _context.get()
    if context is None or context.external_staging or context.token_sink is None or context.captured:
        return
    context.captured = True
    items = context.request_items if request_messages is None else request_messages
    try:
        output = split_output(response)
        if output.fields is None and is_too_long(response):
            context.captured = False
            await abandon_call()
            return
        if output.fields is None:
            raise ValueError(NO_TOKEN_IDS + (f" ({context.model_ref})" if context.model_ref else ""))
        await _store_call(context, response, items, output, output.fields)
    except Exception as error:  # a failed capture must not fail the call
        await mark_incomplete(context, str(error))


async def _store_call(
    context: CaptureContext, response: Mapping[str, Any], items: Items, output: ModelOutput, fields: TokenFields
) -> None:
    """Store the record of a generation, and let the resolver know it; `split_output` has checked the values."""
    sink = context.token_sink
    prompt, generation = TokenText.of(fields.prompt_token_ids), TokenText.of(fields.generation_token_ids)
    call = CachedCall(prompt + generation, array("d", fields.generation_log_probs), is_verified=True)
    match = context.resolution.match
    context.has_prefix = match is not None and _begins_with(prompt, match.cumulative_token_ids)
    is_delta = context.delta_records and context.has_prefix
    is_file = type(sink) is TokenCaptureStore
    written = RequestItems(output.items)
    entry = LineageEntry(
        context.model_call_id,
        assistant_fingerprint(items, written),
        len(items),
        conversation_digest(items),
        "" if is_file and not is_delta else token_digest(call.tokens),
        len(call),
        match.model_call_id if match is not None else None,
        generated_len=len(generation),
        extends_parent=context.has_prefix,
        is_closed=is_turn_closed(output.items[output.token_index]),
    )
    texts = opening_texts(items) if context.resolution.opens_context else []
    record = _record_fields(context, response, entry, output, fields)
    if texts:
        record["opening_texts"] = texts
    ref: Any = None
    if is_delta:
        record["prompt_token_ids"] = fields.prompt_token_ids[len(context.parent_token_ids) :]
    if isinstance(sink, TokenCaptureStore) and is_file:
        if not is_delta:
            record["prompt_token_ids"], record["generation_token_ids"] = prompt.json, generation.json
        ref = sink.put_fields(record)
    elif sink is not None:
        ref = await sink.put(TokenEntry.model_construct(**record))
    observe = getattr(context.lineage_store, "observe", None)
    if observe is not None:
        entry.ref, entry.text_fingerprints = ref, frozenset(text_fingerprints(written) + texts)
        observe(context.rollout_id, entry, call)


def _begins_with(prompt: TokenText, parent: Sequence[int]) -> bool:
    return len(parent) > 0 and prompt.startswith(TokenText.of(parent))


def _record_fields(
    context: CaptureContext, response: Mapping[str, Any], entry: LineageEntry, output: ModelOutput, fields: TokenFields
) -> dict[str, Any]:
    """Return the fields of the `TokenEntry` of a generation in their order, without those that have their defaults."""
    resolution = context.resolution
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "rollout_id": context.rollout_id,
        "model_call_id": context.model_call_id,
        "model": str(response.get("model") or ""),
        "prompt_token_ids": fields.prompt_token_ids,
        "generation_token_ids": fields.generation_token_ids,
        "generation_log_probs": fields.generation_log_probs,
        "output_items": output.items,
        "created_at": context.admitted_at,
        "response_id": str(response.get("id") or ""),
        "cum_len": entry.cum_len,
        "parent_resolution": resolution.status.value,
        "continuation_fingerprint": entry.fingerprint,
        "continuation_context_len": entry.context_len,
        "continuation_context_digest": entry.context_digest,
        "fingerprint_version": FINGERPRINT_VERSION,
    }
    if fields.routed_experts is not None:
        record["routed_experts"] = fields.routed_experts
    if output.token_index:
        record["token_item_index"] = output.token_index
    if entry.parent_call_id is not None:
        record["parent_call_id"] = entry.parent_call_id
    if entry.digest:
        record["digest"] = entry.digest
    if resolution.reason:
        record["parent_resolution_reason"] = str(resolution.reason)
    if resolution.opens_context:
        record["opens_context"] = True
    if context.has_prefix:
        record["extends_parent"] = True
        if context.delta_records:
            record["prompt_is_delta"] = True
    if context.prefix_requested:
        record["prefix_requested"] = True
        if context.has_prefix:
            record["prefix_supplied"] = True
    return record


async def mark_incomplete(context: CaptureContext, reason: str) -> None:
    """Mark the rollout of a capture incomplete and log the reason."""
    count_capture_failure()
    logger.warning("a model call of rollout %s is not captured: %s", context.rollout_id, reason)
    sink = context.token_sink
    if sink is None:
        return
    try:
        if isinstance(sink, TokenCaptureStore):
            await sink.mark_incomplete(context.rollout_id, context.model_call_id, reason=reason)
        else:
            await sink.mark_incomplete(context.rollout_id, context.model_call_id)
    except Exception as error:  # of any sink
        logger.error("rollout %s could not be marked incomplete: %r", context.rollout_id, error)


def context_for(template: CaptureContext, rollout_id: str) -> CaptureContext:
    """Return a new capture for a call of a rollout, with the stores of `template`."""
    return CaptureContext(
        rollout_id,
        _new_call_id(),
        template.token_sink,
        template.lineage_store,
        template.delta_records,
        template.external_staging,
        model_ref=template.model_ref,
    )


_call_numbers = itertools.count()


@functools.cache
def _process_tag(pid: int) -> str:
    return f"{pid:x}-{uuid4().hex}"


def _new_call_id() -> str:
    """Return a unique call id: random for the process, then counted, because random bytes cost a system call."""
    return f"mc_{_process_tag(os.getpid())}_{next(_call_numbers):08x}"
