"""References to server instances by type and instance id."""

from typing import Literal

from pydantic import BaseModel


class ModelServerRef(BaseModel):
    """A reference to a model server by its instance id."""

    type: Literal["responses_api_models"]
    name: str


class ResourcesServerRef(BaseModel):
    """A reference to a resources server by its instance id."""

    type: Literal["resources_servers"]
    name: str


class AgentServerRef(BaseModel):
    """A reference to an agent server by its instance id."""

    type: Literal["responses_api_agents"]
    name: str
