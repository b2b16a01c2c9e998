"""The capture at an inference worker: stage the delta of each call, and return its coordinates.

An error of the capture never fails the model call: the coordinates then say `capture_failed`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nemo_gym.token_id_capture.staging import digests
from nemo_gym.token_id_capture.staging.records import (
    NG_CAPTURE_FIELD,
    NG_COMMIT_COORDS_FIELD,
    CaptureAdmission,
    CommitCoords,
    StagedCallRecord,
    StagingSink,
    WeightVersionProvider,
    staging_key,
)

logger = logging.getLogger(__name__)


@dataclass
class WorkerCall:
    """One admitted call at the worker."""

    admission: CaptureAdmission
    prefix_token_ids: Sequence[int] = ()
    weight_version: int = 0
    problem: str | None = None
    """Why the call cannot be captured."""


class CaptureAdapter(Protocol):
    """Connects the capture to the serving layer of one engine."""

    def enter_prefix(self, request: dict[str, Any], prefix_token_ids: Sequence[int]) -> None:
        """Make the engine begin the prompt of a request with these tokens."""
        ...

    def extract_prompt_ids(self, payload: Mapping[str, Any]) -> list[int]: ...

    def extract_generation(self, payload: Mapping[str, Any]) -> tuple[list[int], list[float]]: ...

    def extract_extras(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return routed experts and media spans, if the engine gives them."""
        ...


class RolloutTokenCapture:
    """Stages the calls of a worker. Its methods may be called from several threads."""

    def __init__(
        self,
        sink: StagingSink,
        *,
        weight_version_fn: WeightVersionProvider = lambda: 0,
        adapter: "CaptureAdapter | None" = None,
        fetch_prefix: Callable[[Sequence[str]], Sequence[int]] | None = None,
    ) -> None:
        self.sink = sink
        self.weight_version_fn = weight_version_fn
        self.adapter = adapter
        self.fetch_prefix = fetch_prefix
        """Reads the tokens of a staging chain, for admissions without an inline prefix."""

    def begin_call(
        self,
        admission: CaptureAdmission | Mapping[str, Any],
        prefix_token_ids: Sequence[int] | None = None,
        stream: bool = False,
        weight_version: int | None = None,
    ) -> WorkerCall:
        """Begin a call: check its admission, and find the tokens that its prompt must begin with."""
        if not isinstance(admission, CaptureAdmission):
            admission = CaptureAdmission.model_validate(admission)
        call = WorkerCall(admission)
        try:
            call.weight_version = self.weight_version_fn() if weight_version is None else weight_version
            if stream:
                raise ValueError("a streamed call cannot be captured")
            prefix = prefix_token_ids if prefix_token_ids is not None else admission.required_prefix_token_ids
            if not prefix and admission.prev_len and self.fetch_prefix is not None:
                prefix = self.fetch_prefix(admission.staging_chain)
            if len(prefix) != admission.prev_len:
                raise ValueError(f"the prefix has {len(prefix)} tokens, not {admission.prev_len}")
            call.prefix_token_ids = prefix
        except Exception as error:  # of any store or engine
            call.problem = str(error)
        return call

    def complete_call(
        self,
        call: WorkerCall,
        *,
        prompt_token_ids: Sequence[int],
        generation_token_ids: Sequence[int],
        generation_log_probs: Sequence[float],
        extras: Mapping[str, Any] | None = None,
        attachments: Mapping[str, Any] | None = None,
    ) -> CommitCoords:
        """Stage the delta of a call, and return its coordinates."""
        if call.problem is not None:
            return self.fail_call(call, call.problem)
        try:
            record = _staged_record(
                call, prompt_token_ids, generation_token_ids, generation_log_probs, dict(extras or {})
            )
            result = self.sink.stage(record, attachments=attachments)
            if not result.ok:
                raise ValueError(result.error or "the sink did not store the call")
        except Exception as error:  # of any sink; the model call goes on
            return self.fail_call(call, str(error))
        names = CommitCoords.model_fields.keys() & StagedCallRecord.model_fields.keys()
        fields = {name: getattr(record, name) for name in names}
        key = result.staging_key or staging_key(record.rollout_id, record.model_call_id)
        return CommitCoords(**fields, disposition="staged", staging_key=key)

    def complete_call_from_response(
        self, call: WorkerCall, payload: Mapping[str, Any], attachments: Mapping[str, Any] | None = None
    ) -> CommitCoords:
        """Stage a call from the engine's payload."""
        try:
            if self.adapter is None:
                raise ValueError("no adapter reads the payload of this engine")
            prompt = self.adapter.extract_prompt_ids(payload)
            generation, log_probs = self.adapter.extract_generation(payload)
            extras = self.adapter.extract_extras(payload)
        except Exception as error:  # of any engine
            return self.fail_call(call, str(error))
        return self.complete_call(
            call,
            prompt_token_ids=prompt,
            generation_token_ids=generation,
            generation_log_probs=log_probs,
            extras=extras,
            attachments=attachments,
        )

    def fail_call(self, call: WorkerCall, error: str) -> CommitCoords:
        """Return the coordinates of a call that could not be captured."""
        admission = call.admission
        logger.warning(
            "the call %s of rollout %s is not staged: %s", admission.model_call_id, admission.rollout_id, error
        )
        return CommitCoords(
            rollout_id=admission.rollout_id,
            model_call_id=admission.model_call_id,
            parent_call_id=admission.parent_call_id,
            prev_len=admission.prev_len,
            weight_version=call.weight_version,
            disposition="capture_failed",
            error=error[:500],
        )


def _staged_record(
    call: WorkerCall,
    prompt: Sequence[int],
    generation: Sequence[int],
    log_probs: Sequence[float],
    extras: dict[str, Any],
) -> StagedCallRecord:
    """Build the record of a call: the prompt after the prefix with mask 0, and the generation with mask 1."""
    admission, length = call.admission, len(call.prefix_token_ids)
    if list(prompt[:length]) != list(call.prefix_token_ids):
        raise ValueError("the prompt of the engine does not begin with the tokens of the parent call")
    if not generation or len(generation) != len(log_probs):
        raise ValueError(f"{len(generation)} generated tokens and {len(log_probs)} log-probs")
    suffix = list(prompt[length:])
    delta = [*suffix, *generation]
    fields: dict[str, Any] = {
        "rollout_id": admission.rollout_id,
        "model_call_id": admission.model_call_id,
        "parent_call_id": admission.parent_call_id,
        "mode": admission.mode,
        "prev_len": length,
        "delta_len": len(delta),
        "cum_len": length + len(delta),
        "weight_version": call.weight_version,
        "token_ids_delta": delta,
        "token_mask_delta": [0.0] * len(suffix) + [1.0] * len(generation),
        "generation_log_probs_delta": [0.0] * len(suffix) + [float(value) for value in log_probs],
        "extras_digest": digests.extras_digest(extras),
        "chain_hash": digests.chain_hash(admission.parent_chain_hash, delta),
        "cumulative_hash": digests.cumulative_hash([*call.prefix_token_ids, *delta]),
    }
    return StagedCallRecord(**fields, digest=digests.call_digest(**fields), extras=extras)


@dataclass
class VLLMCaptureAdapter:
    """Reads chat completions of vLLM with `return_tokens_as_token_ids` or `return_token_ids`."""

    prefix_field: str = "required_prefix_token_ids"

    def enter_prefix(self, request: dict[str, Any], prefix_token_ids: Sequence[int]) -> None:
        request[self.prefix_field] = list(prefix_token_ids)

    def extract_prompt_ids(self, payload: Mapping[str, Any]) -> list[int]:
        for holder in (payload, payload["choices"][0], payload["choices"][0].get("message") or {}):
            if holder.get("prompt_token_ids") is not None:
                return list(holder["prompt_token_ids"])
        raise ValueError("the answer has no prompt_token_ids")

    def extract_generation(self, payload: Mapping[str, Any]) -> tuple[list[int], list[float]]:
        choice = payload["choices"][0]
        message = choice.get("message") or {}
        if message.get("generation_token_ids") is not None:
            return list(message["generation_token_ids"]), list(message["generation_log_probs"])
        entries = (choice.get("logprobs") or {}).get("content") or []
        ids = choice.get("token_ids")
        if ids is None:
            ids = [int(str(entry["token"]).removeprefix("token_id:")) for entry in entries]
        return list(ids), [float(entry["logprob"]) for entry in entries]

    def extract_extras(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        choice = payload["choices"][0]
        holders = (choice, choice.get("message") or {}, payload)
        names = ("routed_experts", "media_spans")
        return {name: holder[name] for name in names for holder in holders[::-1] if holder.get(name) is not None}


@dataclass
class MegatronCaptureAdapter(VLLMCaptureAdapter):
    """Reads replies of Megatron's inference server, whose capture settings are in `offload_params`."""

    prefix_field: str = "required_prefix_token_ids"

    def enter_prefix(self, request: dict[str, Any], prefix_token_ids: Sequence[int]) -> None:
        request.setdefault("offload_params", {})[self.prefix_field] = list(prefix_token_ids)


@dataclass
class CapturedServing:
    """A serving layer, `async (request) -> payload`, whose admitted calls are staged."""

    serve: Callable[[dict[str, Any]], Any]
    capture: RolloutTokenCapture
    failures: int = field(default=0, init=False)

    async def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        """Serve a request; stage it and add its coordinates if it has an admission."""
        offload = request.get("offload_params")
        holder = request if NG_CAPTURE_FIELD in request else offload if isinstance(offload, dict) else {}
        admission = holder.pop(NG_CAPTURE_FIELD, None)
        if admission is None:
            plain: dict[str, Any] = await self.serve(request)
            return plain
        call = self.capture.begin_call(admission, stream=bool(request.get("stream")))
        if call.prefix_token_ids and self.capture.adapter is not None:
            self.capture.adapter.enter_prefix(request, call.prefix_token_ids)
        payload: dict[str, Any] = dict(await self.serve(request))
        coords = self.capture.complete_call_from_response(call, payload)
        self.failures += coords.disposition == "capture_failed"
        payload[NG_COMMIT_COORDS_FIELD] = coords.model_dump(mode="json")
        return payload


def install_capture(
    serving_layer: Callable[[dict[str, Any]], Any],
    *,
    sink: StagingSink,
    weight_version_fn: WeightVersionProvider = lambda: 0,
    adapter: CaptureAdapter | None = None,
    fetch_prefix: Callable[[Sequence[str]], Sequence[int]] | None = None,
) -> CapturedServing:
    """Return the serving layer of a worker with the capture around it."""
    capture = RolloutTokenCapture(
        sink,
        weight_version_fn=weight_version_fn,
        adapter=adapter or VLLMCaptureAdapter(),
        fetch_prefix=fetch_prefix,
    )
    return CapturedServing(serving_layer, capture)
