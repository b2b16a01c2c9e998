"""Rollout id of a request. Re-exports `nemo_gym.serve.correlation`."""

from nemo_gym.serve.correlation import (
    RolloutContextMiddleware,
    apply_rollout_prefix,
    current_rollout_id,
    current_token_capture,
    maybe_rollout_id_from_run_body,
    rollout_context,
    rollout_path_prefix,
)

__all__ = [
    "RolloutContextMiddleware",
    "apply_rollout_prefix",
    "current_rollout_id",
    "current_token_capture",
    "maybe_rollout_id_from_run_body",
    "rollout_context",
    "rollout_path_prefix",
]
