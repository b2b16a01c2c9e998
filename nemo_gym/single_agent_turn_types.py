"""Bodies of episodes of one agent turn: one activation of an agent, verified by a resources server."""

from typing import Any

from pydantic import ConfigDict, Field, model_validator

from nemo_gym.wire.episode_task import BaseEpisodeRequest, BaseEpisodeResponse, EpisodeFailure, EpisodeModel
from nemo_gym.wire.observations import AgentObservationBundle
from nemo_gym.wire.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.wire.run_seed_verify import BaseVerifyResponse


class SingleAgentTurnTaskInput(EpisodeModel):
    """The request to the agent, and the fields of the task; fields beside them belong to the task too."""

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    task_data: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _fold_flat_fields(cls, value: Any) -> Any:
        """Move flat fields into `task_data`; a field that is in both with different values is an error."""
        if not isinstance(value, dict) or not isinstance(value.get("task_data") or {}, dict):
            return value  # the validation reports it
        flat = {key: field for key, field in value.items() if key not in cls.model_fields}
        task_data = dict(value.get("task_data") or {})
        for key, field in flat.items():
            if task_data.setdefault(key, field) != field:
                raise ValueError(f"{key} has different values in the task and in its task_data")
        return {**{key: field for key, field in value.items() if key in cls.model_fields}, "task_data": task_data}


class SingleAgentTurnRequest(BaseEpisodeRequest[SingleAgentTurnTaskInput]):
    pass


class SingleAgentTurnResult(BaseVerifyResponse):
    """The answer of the verifier, and what the agent observed."""

    model_config = ConfigDict(extra="allow")

    ng_agent_observations: AgentObservationBundle | None = None


class SingleAgentTurnFailure(EpisodeFailure):
    """A failure, with what the agent had answered before it."""

    partial_response: Any = Field(default=None, exclude_if=lambda response: response is None)


class SingleAgentTurnResponse(BaseEpisodeResponse[SingleAgentTurnResult]):
    failure: SingleAgentTurnFailure | None = None
