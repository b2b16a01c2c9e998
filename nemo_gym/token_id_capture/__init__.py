"""Token id capture: every model call of a rollout is recorded once, at the model server.

- `config`: the block `token_id_capture`
- `records`, `fingerprint`: the record of a call, its digest, and the fingerprint of its conversation
- `protocols`, `store`: sinks and sources; the files of one folder
- `lineage`, `lineage_files`, `ledger_files`: the call that a request continues
- `context`, `call`, `memory`, `middleware`, `process_stores`: the capture at a model server
- `builder`, `terminal`, `consumer`, `delivery`: chains of calls, the call that ended the rollout, results for trainers
- `external_capture`, `control_routes`, `staging`: tokens that the inference worker keeps
- `conformance`: checks for stores written by others
"""

import importlib
from typing import Any

_HOMES = {
    "config": ("TokenIdCaptureConfig", "token_id_capture_config", "token_id_capture_enabled_for_agent"),
    "conformance": ("ConformanceError", "run_conformance"),
    "consumer": ("trajectories_from_source",),
    "context": (
        "CaptureContext",
        "capture_tokens",
        "current_capture_context",
        "register_call_intent",
        "reset_token_sink",
        "resolve_parent",
        "set_token_sink",
    ),
    "delivery": ("finalize_rollout_token_capture", "retire_rollout_token_capture"),
    "external_capture": ("ExternalCaptureHandler", "VLLMWorkerCaptureHandler", "make_external_capture_handler"),
    "staging.receipts": ("LinearizedRow", "ReceiptVerificationError", "verify_and_linearize"),
    "staging.records": (
        "CallRecord",
        "CaptureAdmission",
        "CaptureLedger",
        "CommitCoords",
        "NG_CAPTURE_FIELD",
        "NG_COMMIT_COORDS_FIELD",
        "RolloutManifest",
        "RolloutReceipt",
        "StageResult",
        "StagedCallBaseSnapshot",
        "UNCOMMITTED_CALL_REASON",
        "WORKER_MISSING_COMMIT_COORDS_REASON",
    ),
    "staging.terminal": ("select_terminal_call",),
    "staging.worker": ("MegatronCaptureAdapter", "RolloutTokenCapture", "VLLMCaptureAdapter", "install_capture"),
    "process_stores": ("install_lineage_store", "install_token_sink", "install_token_source"),
    "lineage": (
        "InMemoryLineageStore",
        "LineageMatch",
        "LineageResolution",
        "LineageResolver",
        "ParentResolutionStatus",
        "capture_health_snapshot",
    ),
    "lineage_files": ("FileLineageStore", "IncrementalLineageStore"),
    "protocols": ("TokenCaptureSnapshot", "TokenSink", "TokenSource"),
    "records": ("TokenEntry",),
    "store": ("TokenCaptureStore",),
    "terminal": ("resolve_terminal",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that a server loads only what it needs."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
