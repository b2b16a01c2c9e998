"""What the merged configuration says about capturing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_gym.capture.store import CaptureStore
from nemo_gym.errors import ConfigError

OBSERVABILITY_ENABLED_KEY = "observability_enabled"
MODEL_CALL_CAPTURE_DIR_KEY = "model_call_capture_dir"
TOKEN_ID_CAPTURE_KEY = "token_id_capture"


def captures_model_calls(config: object) -> bool:
    """Whether rollouts are observed. Anything that is not a configuration (a test's stand-in) says no."""
    return isinstance(config, Mapping) and config.get(OBSERVABILITY_ENABLED_KEY) is True


def captures_token_ids(config: object, *, agent_asks: bool) -> bool:
    """Whether an agent's model calls keep their token ids: capture is on, and for this agent or for all."""
    block: Any = config.get(TOKEN_ID_CAPTURE_KEY) if isinstance(config, Mapping) else None
    if not isinstance(block, Mapping) or block.get("enabled") is not True:
        return False
    return agent_asks or block.get("all_agents") is True


def capture_store(config: object) -> CaptureStore | None:
    """Where model calls are kept, or None when they are not.

    Raises:
        ConfigError: they should be kept, but nowhere is said, or a place that depends on the working directory.
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
