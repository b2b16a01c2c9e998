"""The block `token_id_capture` of the configuration, and which agents take part."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nemo_gym.capture.store import MODEL_CALL_CAPTURE_DIR_KEY, TOKEN_ID_CAPTURE_KEY, captures_token_ids
from nemo_gym.errors import ConfigError
from nemo_gym.keys import AGENTS

TOKEN_ID_CAPTURE_BLOCK = TOKEN_ID_CAPTURE_KEY
CONTROL_TOKEN_ENV_VAR = "NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN"
Backend = Literal["vllm_worker", "megatron_worker"]


class TokenCaptureConfigError(ConfigError, ValueError):
    """Token id capture is on, but it could capture nothing as it is configured."""


class TokenIdCaptureConfig(BaseModel):
    """The run-level settings of token id capture. While it is disabled, only the fields themselves are checked."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool = False
    all_agents: bool = False
    """Capture the calls of every agent, not only of those with `token_id_capture: true` in their block."""
    dir: Path | None = None
    """Absolute folder of the token files; falls back to `model_call_capture_dir`."""
    sink: str | None = None
    """`module:Class` that stores the records instead of the files in `dir`."""
    sink_kwargs: dict[str, Any] = Field(default_factory=dict)
    lineage_store: str | None = None
    """`module:Class` that finds the earlier call that a request continues."""
    lineage_store_kwargs: dict[str, Any] = Field(default_factory=dict)
    rebuild_response: bool = True
    """Deliver the captured tokens in the results. False: a framework reads them from its own store."""
    allow_unresolved_continuations: bool = False
    """Accept a sink without a lineage store; every rollout with more than one call is then masked."""
    delta_records: bool = False
    """Store only the tokens of a prompt that its earlier call does not have."""
    max_mask_fraction: float | None = Field(default=None, ge=0.0, le=1.0)
    """End the collection when a larger fraction of the rollouts is masked."""
    mask_fraction_min_samples: int = Field(default=50, ge=1)
    """Rollouts to finish before `max_mask_fraction` is checked."""
    external_staging: bool = False
    """The inference worker stores the tokens and returns only their coordinates."""
    external_staging_backend: Backend = "vllm_worker"
    control_auth_token_env: str = CONTROL_TOKEN_ENV_VAR
    """Environment variable with the token of the control route."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if not self.enabled:
            return self
        if self.dir is not None and not self.dir.is_absolute():
            raise ValueError(f"dir must be an absolute path, not {str(self.dir)!r}")
        if self.external_staging and self.rebuild_response:
            raise ValueError("external_staging needs rebuild_response: false, because results carry no tokens then")
        if self.external_staging_backend == "megatron_worker" and not self.external_staging:
            raise ValueError("external_staging_backend: megatron_worker needs external_staging: true")
        return self


DISABLED = TokenIdCaptureConfig()


def token_id_capture_config(config: object) -> TokenIdCaptureConfig:
    """Read the block `token_id_capture`; `dir` falls back to `model_call_capture_dir`. A mock counts as disabled.

    Raises:
        TokenCaptureConfigError: the block has an unknown key or a value that breaks a rule.
    """
    block: Any = config.get(TOKEN_ID_CAPTURE_KEY) if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or block is None:
        return DISABLED
    if not isinstance(block, Mapping):
        raise TokenCaptureConfigError(f"it is a block of settings, not {block!r}", where=TOKEN_ID_CAPTURE_KEY)
    fields = {str(key): _plain_value(value) for key, value in block.items()}
    if not fields.get("enabled"):
        fields = {key: value for key, value in fields.items() if key in TokenIdCaptureConfig.model_fields}
    try:
        settings = TokenIdCaptureConfig.model_validate(fields)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".removeprefix(": ") for problem in error.errors()
        )
        raise TokenCaptureConfigError(problems, where=TOKEN_ID_CAPTURE_KEY) from None
    directory = config.get(MODEL_CALL_CAPTURE_DIR_KEY)
    if settings.enabled and settings.dir is None and directory:
        if not Path(directory).is_absolute():
            raise TokenCaptureConfigError(
                f"it must be an absolute path, not {directory!r}", where=MODEL_CALL_CAPTURE_DIR_KEY
            )
        settings = settings.model_copy(update={"dir": Path(directory)})
    return settings


def token_id_capture_enabled_for_agent(config: object, agent_name: str) -> bool:
    """Return whether the model calls of an agent are captured: enabled, and for all agents or in its block."""
    return captures_token_ids(config, for_this_agent=_has_own_flag(config, agent_name))


def check_token_capture(config: object) -> TokenIdCaptureConfig:
    """Return the settings of a configuration that can capture something; settings that are disabled pass.

    Raises:
        TokenCaptureConfigError: no agent takes part, or the records have no destination.
    """
    settings = token_id_capture_config(config)
    if not settings.enabled or not isinstance(config, Mapping):
        return settings
    agents = [str(name) for name, block in config.items() if isinstance(block, Mapping) and AGENTS in block]
    if agents and not any(token_id_capture_enabled_for_agent(config, name) for name in agents):
        raise TokenCaptureConfigError(
            f"capture is enabled, but no agent takes part ({', '.join(sorted(agents))})",
            where=TOKEN_ID_CAPTURE_KEY,
            fix=f"+{TOKEN_ID_CAPTURE_KEY}.all_agents=true, or token_id_capture: true in the block of an agent",
        )
    return settings


def no_destination() -> TokenCaptureConfigError:
    """Build the error for records that have neither a sink nor a folder."""
    return TokenCaptureConfigError(
        "capture is enabled, but the records have no destination",
        where=TOKEN_ID_CAPTURE_KEY,
        fix=f"+{TOKEN_ID_CAPTURE_KEY}.dir=/an/absolute/folder",
    )


def _has_own_flag(config: object, agent_name: str) -> bool:
    block: Any = config.get(agent_name) if isinstance(config, Mapping) else None
    implementations: Any = block.get(AGENTS) if isinstance(block, Mapping) else None
    if not isinstance(implementations, Mapping):
        return False
    return any(
        isinstance(fields, Mapping) and fields.get("token_id_capture") is True for fields in implementations.values()
    )


def _plain_value(value: Any) -> Any:
    """Return OmegaConf containers as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, list) or type(value).__name__ == "ListConfig":
        return [_plain_value(item) for item in value]
    return value
