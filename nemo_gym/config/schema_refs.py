"""How one server names another."""

from typing import Any, Literal, TypeAlias

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, TypeAdapter, ValidationError

AGENT_REF_KEY = "agent_ref"


class ModelServerRef(BaseModel):
    """Points to a model server by its instance id."""

    type: Literal["responses_api_models"]
    name: str


class ResourcesServerRef(BaseModel):
    """Points to a resources server by its instance id."""

    type: Literal["resources_servers"]
    name: str


class AgentServerRef(BaseModel):
    """Points to an agent server by its instance id."""

    type: Literal["responses_api_agents"]
    name: str


ServerRef: TypeAlias = ModelServerRef | ResourcesServerRef | AgentServerRef
ServerRefTypeAdapter: TypeAdapter[ServerRef] = TypeAdapter(ServerRef)


def is_server_ref(config_dict: Any) -> ServerRef | None:
    """The reference this value spells, or None if it is something else."""
    if isinstance(config_dict, DictConfig):
        config_dict = OmegaConf.to_container(config_dict, resolve=True)
    if not isinstance(config_dict, dict) or not {"type", "name"} <= config_dict.keys():
        return None
    try:
        return ServerRefTypeAdapter.validate_python(config_dict)
    except ValidationError:
        return None
