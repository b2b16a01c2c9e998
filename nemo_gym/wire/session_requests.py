"""Bodies of the routes that begin and end sessions of resources servers and of agents."""

from typing import Any, Generic, Self, TypeVar

from pydantic import model_validator

from nemo_gym.wire.episode_task import EpisodeId, EpisodeModel, TaskId
from nemo_gym.wire.observations import AgentObservationBundle
from nemo_gym.wire.run_seed_verify import MCPServerMetadata
from nemo_gym.wire.session_access import SandboxAccess, ToolAccess

InputT = TypeVar("InputT")


class ResourcesSeedSessionRequest(EpisodeModel):
    """Begin a session whose id the caller chose; the same request again gives the same session."""

    resources_session_id: str
    episode_id: EpisodeId
    task_id: TaskId
    task_data: dict[str, Any] = {}


class ResourcesSeedSessionResponse(EpisodeModel):
    resources_session_id: str
    resources_tools: MCPServerMetadata | None = None
    sandbox_access: SandboxAccess | None = None


class ResourcesCloseSessionRequest(EpisodeModel):
    """End a session; to end an unknown or closed one succeeds."""

    resources_session_id: str
    episode_id: EpisodeId


class ResourcesCloseSessionResponse(EpisodeModel):
    resources_session_id: str


class ResourcesVerifyRequest(EpisodeModel, Generic[InputT]):
    """A verify request of a protocol that does not send a row and a response."""

    episode_id: EpisodeId
    task_id: TaskId
    verification_input: InputT


class AgentSeedSessionRequest(EpisodeModel):
    """Begin a session of an agent, with the tools and the sandbox that it may use."""

    agent_session_id: str
    episode_id: EpisodeId
    task_id: TaskId
    tool_accesses: list[ToolAccess] = []
    sandbox_access: SandboxAccess | None = None

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [access.name for access in self.tool_accesses]
        if len(set(names)) != len(names):
            raise ValueError("two tool accesses have the same name")
        return self


class AgentSeedSessionResponse(EpisodeModel):
    agent_session_id: str


class AgentCloseSessionRequest(EpisodeModel):
    agent_session_id: str
    episode_id: EpisodeId


class AgentCloseSessionResponse(EpisodeModel):
    """The end of an agent's session: what the agent observed, and the cookies of its tools."""

    agent_session_id: str
    agent_observations: AgentObservationBundle | None = None
    resources_cookies: dict[str, Any] | None = None
