"""The gymnasium protocol for resources servers: `/reset`, `/step`, and a verdict over the whole episode."""

from resources_servers.gymnasium.server import (
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
from resources_servers.gymnasium.sessions import Sessions

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
    "Sessions",
    "extract_text",
]
