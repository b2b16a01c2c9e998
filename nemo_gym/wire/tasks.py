"""What travels around one task: run, seed, verify.

These are bases for a server's own classes: an unknown field is ignored unless a subclass declares it or allows extras.
A reward is any float. One that is not finite is written as text in JSON ("NaN"), which reads back as the same float;
rejecting it is for whoever collects, where it becomes a failure with a name.
"""

from enum import Enum

from pydantic import BaseModel, ConfigDict

from nemo_gym.wire.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming


class BaseRunRequest(BaseModel):
    """One task: what to ask the model. Subclasses add what the verifier needs."""

    model_config = ConfigDict(ser_json_inf_nan="strings", defer_build=True)

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming


class BaseVerifyRequest(BaseRunRequest):
    response: NeMoGymResponse


class BaseVerifyResponse(BaseVerifyRequest):
    reward: float


class BaseMultiRewardVerifyResponse(BaseVerifyResponse):
    reward_components: dict[str, float]


class BaseSeedSessionRequest(BaseModel):
    """What a session starts from; empty unless a server declares more."""


class BaseSeedSessionResponse(BaseModel):
    pass


class ReverifyMode(str, Enum):  # noqa: UP042 - a member prints as str(Enum) always did; StrEnum would change that
    """Whether a stored response can be verified again without its session."""

    STATELESS = "stateless"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class MCPServerMetadata(BaseModel):
    """Where an agent finds the tools of one session over the Model Context Protocol."""

    server_name: str
    url_path: str = "/mcp"
    transport: str = "http"
    headers: dict[str, str] = {}
