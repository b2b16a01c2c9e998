"""Capture settings in the merged configuration: model call capture and token id capture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_gym.capture.store import CaptureStore
from nemo_gym.errors import ConfigError

OBSERVABILITY_ENABLED_KEY = "observability_enabled"
MODEL_CALL_CAPTURE_DIR_KEY = "model_call_capture_dir"
TOKEN_ID_CAPTURE_KEY = "token_id_capture"


def captures_model_calls(config: object) -> bool:
    """Return True if the configuration enables model call capture; False if `config` is a mock."""
    return isinstance(config, Mapping) and config.get(OBSERVABILITY_ENABLED_KEY) is True


def captures_token_ids(config: object, *, for_this_agent: bool) -> bool:
    """Return True if token id capture is enabled, and `for_this_agent` or for all agents."""
    block: Any = config.get(TOKEN_ID_CAPTURE_KEY) if isinstance(config, Mapping) else None
    if not isinstance(block, Mapping) or block.get("enabled") is not True:
        return False
    return for_this_agent or block.get("all_agents") is True


def capture_store(config: object) -> CaptureStore | None:
    """Return the store of captured model calls; None if model calls are not captured.

    Raises:
        ConfigError: `model_call_capture_dir` is missing or not an absolute path.
    """
    if not captures_model_calls(config):
        return None
    assert isinstance(config, Mapping)
    directory = config.get(MODEL_CALL_CAPTURE_DIR_KEY)
    if not isinstance(directory, str | Path) or not Path(directory).is_absolute():
        raise ConfigError(
            f"{OBSERVABILITY_ENABLED_KEY} is on, so {MODEL_CALL_CAPTURE_DIR_KEY} must be an absolute path, "
            f"not {directory!r}",
            fix=f"+{MODEL_CALL_CAPTURE_DIR_KEY}=/somewhere/captures",
        )
    return CaptureStore(directory)
