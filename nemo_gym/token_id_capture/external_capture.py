"""External staging at a model server: admit calls, send the admission to the worker, commit its coordinates."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from nemo_gym.token_id_capture.config import token_id_capture_config
from nemo_gym.token_id_capture.context import CaptureContext, current_capture_context
from nemo_gym.token_id_capture.fingerprint import assistant_fingerprint
from nemo_gym.token_id_capture.lineage import LineageResolution, ParentResolutionStatus
from nemo_gym.token_id_capture.records import response_to_output_items
from nemo_gym.token_id_capture.staging.records import (
    INVALID_COMMIT_COORDS_REASON,
    MISSING_CHAIN_HASH_REASON,
    MISSING_RESPONSE_ID_REASON,
    NG_CAPTURE_FIELD,
    NG_COMMIT_COORDS_FIELD,
    UNCOMMITTED_CALL_REASON,
    UNRESOLVED_PARENT_REASON,
    WORKER_CAPTURE_FAILED_REASON,
    WORKER_MISSING_COMMIT_COORDS_REASON,
    CallRecord,
    CaptureAdmission,
    CaptureLedger,
    CaptureLedgerCommit,
    CommitCoords,
)
from nemo_gym.wire.base import TOKEN_FIELDS

logger = logging.getLogger(__name__)

Json = dict[str, Any]
_CHOICE_TOKEN_FIELDS = (*TOKEN_FIELDS, "token_ids", "prompt_token_ids", "logprobs")


def ledger_of(context: CaptureContext) -> CaptureLedger:
    """Return the ledger of a capture; the start-up check guarantees that there is one."""
    assert isinstance(context.lineage_store, CaptureLedger)
    return context.lineage_store


async def admit_call(context: CaptureContext, request_items: Sequence[Mapping[str, Any]]) -> LineageResolution:
    """Resolve a request and set the admission of its call; an unresolved one is a failure in the ledger.

    Raises:
        Exception: the lookup failed; the call must not run.
    """
    ledger = ledger_of(context)
    resolution = await ledger.resolve(context.rollout_id, request_items)
    match = resolution.match
    ids = {"rollout_id": context.rollout_id, "model_call_id": context.model_call_id}
    if resolution.status is ParentResolutionStatus.RESOLVED and match is not None:
        context.admission = CaptureAdmission(
            **ids,
            mode="token_in",
            parent_call_id=match.model_call_id,
            prev_len=match.prev_len,
            staging_chain=list(match.staging_chain),
            parent_chain_hash=match.chain_hash,
            required_prefix_token_ids=list(match.cumulative_token_ids),
        )
    elif resolution.status is ParentResolutionStatus.ROOT or not await ledger.has_rows(context.rollout_id):
        context.admission = CaptureAdmission(**ids, mode="text")
    else:
        await ledger.record_failure(context.rollout_id, context.model_call_id, UNRESOLVED_PARENT_REASON)
    return resolution


class ExternalCaptureHandler:
    """Connects a model server's backend requests to the capture of the current call."""

    def prepare_request(self, body: Json) -> Json:
        """Return the request for the backend with the admission; unchanged if the call is not captured.

        Raises:
            ValueError: the request cannot be captured, because it streams or asks for several choices.
        """
        context = current_capture_context()
        if context is None or not context.external_staging or context.admission is None:
            return body
        if body.get("stream"):
            raise ValueError("a captured call cannot stream from the backend")
        if (body.get("n") or 1) != 1:
            raise ValueError("a captured call must ask for one choice")
        return self.with_admission(body, context.admission)

    def with_admission(self, body: Json, admission: CaptureAdmission) -> Json:
        """Return the request with the admission in the form of the backend."""
        raise NotImplementedError

    def take_coordinates(self, payload: Json) -> Json:
        """Return the backend's payload without coordinates and token fields, and keep the coordinates."""
        context = current_capture_context()
        if context is None or not context.external_staging:
            return payload
        context.commit = payload.pop(NG_COMMIT_COORDS_FIELD, None)
        payload.pop("prompt_token_ids", None)
        for choice in payload.get("choices") or ():
            for holder in (choice, choice.get("message") or {}):
                for name in _CHOICE_TOKEN_FIELDS:
                    holder.pop(name, None)
        return payload


class VLLMWorkerCaptureHandler(ExternalCaptureHandler):
    """Puts the admission into the body, where vLLM's serving layer reads it."""

    def with_admission(self, body: Json, admission: CaptureAdmission) -> Json:
        fields: Json = {
            NG_CAPTURE_FIELD: admission.model_dump(mode="json"),
            "logprobs": True,
            "top_logprobs": 0,
            "return_tokens_as_token_ids": True,
        }
        if admission.mode == "token_in" and admission.required_prefix_token_ids:
            fields["required_prefix_token_ids"] = list(admission.required_prefix_token_ids)
        return {**body, **fields}


class MegatronWorkerCaptureHandler(ExternalCaptureHandler):
    """Puts the admission into `offload_params`, where Megatron's inference server reads it."""

    def with_admission(self, body: Json, admission: CaptureAdmission) -> Json:
        offload = {**(body.get("offload_params") or {}), NG_CAPTURE_FIELD: admission.model_dump(mode="json")}
        return {**body, "n": 1, "offload_params": offload}


def make_external_capture_handler(config: object) -> ExternalCaptureHandler | None:
    """Return the handler for the configured backend; None without external staging."""
    settings = token_id_capture_config(config)
    if not settings.enabled or not settings.external_staging:
        return None
    is_megatron = settings.external_staging_backend == "megatron_worker"
    return MegatronWorkerCaptureHandler() if is_megatron else VLLMWorkerCaptureHandler()


async def commit_external_call(context: CaptureContext, response: Mapping[str, Any]) -> None:
    """Write the row of the call that `response` serves, or the reason why it has no row. Never fails the call."""
    admission = context.admission
    if not context.external_staging or admission is None or context.captured:
        return
    context.captured = True
    try:
        commit, reason = _ledger_commit(context, admission, response)
        if commit is not None:
            await ledger_of(context).record(commit)
            return
    except Exception as error:  # of any ledger
        logger.warning("the call %s was not committed: %r", context.model_call_id, error)
        reason = UNCOMMITTED_CALL_REASON
    await fail_external_call(context, reason)


async def fail_external_call(context: CaptureContext, reason: str = UNCOMMITTED_CALL_REASON) -> None:
    """Record a call without a row, if it was admitted."""
    if context.external_staging and context.admission is not None:
        with contextlib.suppress(Exception):  # of any ledger; the missing row is visible to the framework
            await ledger_of(context).record_failure(context.rollout_id, context.model_call_id, reason)


def _ledger_commit(
    context: CaptureContext, admission: CaptureAdmission, response: Mapping[str, Any]
) -> tuple[CaptureLedgerCommit | None, str]:
    """Return the row of a call, or None and the reason why it has none."""
    if context.commit is None:
        return None, WORKER_MISSING_COMMIT_COORDS_REASON
    try:
        coords = CommitCoords.model_validate(context.commit)
    except ValidationError:
        return None, INVALID_COMMIT_COORDS_REASON
    if coords.disposition == "capture_failed":
        return None, WORKER_CAPTURE_FAILED_REASON
    expected = (admission.rollout_id, admission.model_call_id, admission.parent_call_id, admission.prev_len)
    if (coords.rollout_id, coords.model_call_id, coords.parent_call_id, coords.prev_len) != expected:
        return None, INVALID_COMMIT_COORDS_REASON
    if coords.cum_len != coords.prev_len + coords.delta_len:
        return None, INVALID_COMMIT_COORDS_REASON
    if not coords.chain_hash:
        return None, MISSING_CHAIN_HASH_REASON
    if not response.get("id"):
        return None, MISSING_RESPONSE_ID_REASON
    output = response_to_output_items(response)
    request = [dict(item) for item in context.request_items]
    names = CallRecord.model_fields.keys() & CommitCoords.model_fields.keys()
    record = CallRecord(
        **{name: getattr(coords, name) for name in names},
        mode=admission.mode,
        response_id=str(response["id"]),
        admitted_at=context.admitted_at,
        output_fingerprint=assistant_fingerprint(output),
        continuation_fingerprint=assistant_fingerprint([*request, *output]),
    )
    chain = [*admission.staging_chain, record.staging_key]
    commit = CaptureLedgerCommit(
        rollout_id=context.rollout_id,
        record=record,
        staging_chain=chain,
        request_items=request,
        response_items=output,
    )
    return commit, ""
