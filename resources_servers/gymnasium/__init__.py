"""The gymnasium protocol for resources servers, as folders import it; `nemo_gym.authoring.gymnasium` implements it."""

from nemo_gym.authoring.gymnasium import (
    EnvResetRequest,
    EnvResetResponse,
    EnvStepRequest,
    EnvStepResponse,
    Episode,
    GymnasiumConfig,
    GymnasiumServer,
    GymnasiumVerifyRequest,
    GymnasiumVerifyResponse,
    extract_text,
)

__all__ = [
    "EnvResetRequest",
    "EnvResetResponse",
    "EnvStepRequest",
    "EnvStepResponse",
    "Episode",
    "GymnasiumConfig",
    "GymnasiumServer",
    "GymnasiumVerifyRequest",
    "GymnasiumVerifyResponse",
    "extract_text",
]
