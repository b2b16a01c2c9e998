"""Bodies of the endpoints `/run`, `/seed_session` and `/verify`: base classes for server folders.

An unknown field is ignored unless a subclass declares it or allows extras. A reward is any float. A reward that is not
finite is written as text in JSON ("NaN"), which reads back as the same float; the collector turns it into a failure.
"""

from enum import Enum
from functools import cache
from inspect import get_annotations
from operator import not_
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from nemo_gym.keys import ROLLOUT_ID_KEY_NAME
from nemo_gym.wire.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming

_MASK_FIELDS = frozenset({"mask_sample", "failure_kind", "failure_reason"})


class BaseRunRequest(BaseModel):
    """One task: the request to the model. Subclasses add the fields of the verifier."""

    model_config = ConfigDict(ser_json_inf_nan="strings", defer_build=True, populate_by_name=True)

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    capture_rollout_id: str | None = Field(default=None, alias=ROLLOUT_ID_KEY_NAME, exclude=True)
    """Rollout id of the caller, for captures; a dump does not contain it."""


class BaseVerifyRequest(BaseRunRequest):
    response: NeMoGymResponse


class BaseVerifyResponse(BaseVerifyRequest):
    """The reward of a rollout. A masked sample has no valid reward and enters no mean.

    A dump contains the three fields of masked samples if they have a value or were passed: verifiers that know them
    pass them, and the whole answers of the others are compared with records of releases without these fields.
    """

    reward: float
    mask_sample: bool = False
    failure_kind: str | None = None
    """Why the sample is masked, in a word of `nemo_gym.failure_kinds` or `<server>:<kind>`."""
    failure_reason: str | None = None

    @model_serializer(mode="wrap")
    def _omit_unused_mask(self, handler: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        # A return type would replace the fields in the JSON schema.
        return _without_unused_mask(self, handler(self))


def verify_fields(response: BaseVerifyResponse) -> dict[str, Any]:
    """Return the fields that a dump of a verify response has, without converting their values."""
    return _without_unused_mask(response, {**vars(response), **(response.model_extra or {})})


def _without_unused_mask(response: BaseVerifyResponse, fields: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields of masked samples that were not passed and have no value."""
    for name in _MASK_FIELDS - response.model_fields_set:
        if not fields.get(name, True) and not _redeclares(type(response), name):
            del fields[name]
    return fields


@cache
def _redeclares(kind: type[BaseVerifyResponse], name: str) -> bool:
    """Return True if a subclass has its own field of this name; its dumps always contain it."""
    bases = kind.__mro__[: kind.__mro__.index(BaseVerifyResponse)]
    return any(name in get_annotations(base) for base in bases)


class BaseMultiRewardVerifyResponse(BaseVerifyResponse):
    reward_components: dict[str, float]
    reward_weights: dict[str, float] | None = Field(default=None, exclude_if=not_)
    """The weight of each component in the reward, if the reward is their weighted sum."""


class BaseSeedSessionRequest(BaseModel):
    """The initial state of a session; empty unless a server declares fields."""


class SeedSessionBody(BaseSeedSessionRequest):
    """The body of a seed that a server does not read, except for the session id that some callers choose."""

    resources_session_id: str | None = None


class BaseSeedSessionResponse(BaseModel):
    pass


class ReverifyMode(str, Enum):  # noqa: UP042 - a member prints as str(Enum) always did; StrEnum would change that
    """Whether a server can verify a stored response again without the session of the episode."""

    STATELESS = "stateless"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class MCPServerMetadata(BaseModel):
    """The MCP endpoint of one session's tools."""

    server_name: str
    url_path: str = "/mcp"
    transport: str = "http"
    headers: dict[str, str] = {}
