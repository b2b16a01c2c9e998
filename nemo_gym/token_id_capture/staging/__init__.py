"""External staging: the inference worker keeps the tokens, the model server a ledger, the framework verifies both.

- `records`: wire models and protocols
- `digests`: hashes of calls, chains and extras
- `worker`: the capture at the worker and its adapters
- `receipts`: verification and the row to train on
- `terminal`: the last call of a rollout without a witness
- `routed_experts`: the text form of expert choices
- `client`: reads the ledger of a model server
"""

import importlib
from typing import Any

_HOMES = {
    "client": ("RolloutControlClient",),
    "receipts": ("LinearizedRow", "RebuildError", "ReceiptVerificationError", "verify_and_linearize"),
    "records": ("CallRecord", "CaptureAdmission", "CommitCoords", "RolloutManifest", "RolloutReceipt", "StageResult"),
    "terminal": ("select_terminal_call",),
    "worker": ("MegatronCaptureAdapter", "RolloutTokenCapture", "VLLMCaptureAdapter", "install_capture"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that a worker loads only what it needs."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
