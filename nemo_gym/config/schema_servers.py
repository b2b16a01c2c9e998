"""Server instances: `<instance id>: {<type>: {<implementation>: {entrypoint: …, …}}}`."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, Literal, TypeAlias

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from nemo_gym.config.schema_cli import MaskedModel
from nemo_gym.config.schema_datasets import AnyDatasetConfig
from nemo_gym.config.schema_refs import AgentServerRef, ModelServerRef, ResourcesServerRef, ServerRef
from nemo_gym.keys import SERVER_TYPES

ServerType: TypeAlias = Literal["responses_api_models", "resources_servers", "responses_api_agents"]
Hosting: TypeAlias = Literal["cell", "process", "venv"]


class Domain(str, Enum):  # noqa: UP042 - `str(Domain.MATH)` is part of what existing code prints
    """The capability a resources server primarily evaluates or trains.

    Pick the single domain that best fits the task. If several seem to apply, choose the most specific one (prefer
    `math` or `coding` over `agent`); use `other` only when none of the specific values fits.

    - `math`: mathematical problem solving
    - `coding`: code generation, repair, or execution
    - `agent`: multi-step, tool-using or environment-interacting tasks
    - `knowledge`: factual or domain-knowledge question answering
    - `instruction_following`: adherence to explicit formatting and constraints
    - `long_context`: reasoning over long inputs
    - `safety`: refusing harmful content, resisting jailbreaks and prompt injection
    - `games`: interactive game environments
    - `translation`: machine translation quality
    - `e2e`: end-to-end pipelines spanning several capabilities
    - `rlhf`: preference, reward-model and LLM-as-judge evaluations
    - `other`: none of the above
    """

    MATH = "math"
    CODING = "coding"
    AGENT = "agent"
    KNOWLEDGE = "knowledge"
    INSTRUCTION_FOLLOWING = "instruction_following"
    LONG_CONTEXT = "long_context"
    SAFETY = "safety"
    GAMES = "games"
    TRANSLATION = "translation"
    E2E = "e2e"
    RLHF = "rlhf"
    OTHER = "other"


class BaseServerConfig(MaskedModel):
    """Where a server listens. Subclasses add their own fields; a secret among them is masked when shown."""

    host: str
    port: int
    num_workers: int | None = None

    @model_validator(mode="before")
    @classmethod
    def accept_omegaconf(cls, data: Any) -> Any:
        return OmegaConf.to_container(data, resolve=True) if isinstance(data, DictConfig) else data


class BaseRunServerConfig(BaseServerConfig):
    """+ the file that runs."""

    entrypoint: str
    domain: Domain | None = None


class BaseRunServerInstanceConfig(BaseRunServerConfig):
    """+ the instance id, by which others refer to this server."""

    name: str


class BaseRunServerTypeConfig(BaseRunServerConfig):
    """An implementation block as it stands in YAML: host and port may be missing, further fields are the server's."""

    model_config = ConfigDict(extra="allow")

    host: str | None = None  # type: ignore[assignment]
    port: int | None = None  # type: ignore[assignment]
    datasets: list[AnyDatasetConfig] | None = None
    hosting: Hosting | None = None
    """In which kind of process the instance runs; by default what its class declares."""


class BaseServerTypeConfig(BaseModel):
    """`{<type>: {<implementation>: …}}`."""

    SERVER_TYPE: ClassVar[ServerType]


class ResponsesAPIModelServerTypeConfig(BaseServerTypeConfig):
    model_config = ConfigDict(extra="allow")
    SERVER_TYPE: ClassVar[ServerType] = "responses_api_models"

    responses_api_models: dict[str, BaseRunServerTypeConfig] = Field(min_length=1, max_length=1)


class ResourcesServerTypeConfig(BaseServerTypeConfig):
    model_config = ConfigDict(extra="allow")
    SERVER_TYPE: ClassVar[ServerType] = "resources_servers"

    resources_servers: dict[str, BaseRunServerTypeConfig] = Field(min_length=1, max_length=1)


class ResponsesAPIAgentServerTypeConfig(BaseServerTypeConfig):
    model_config = ConfigDict(extra="allow")
    SERVER_TYPE: ClassVar[ServerType] = "responses_api_agents"

    responses_api_agents: dict[str, BaseRunServerTypeConfig] = Field(min_length=1, max_length=1)


ServerTypeConfig: TypeAlias = (
    ResponsesAPIModelServerTypeConfig | ResourcesServerTypeConfig | ResponsesAPIAgentServerTypeConfig
)
_REFS: dict[str, type[ModelServerRef] | type[ResourcesServerRef] | type[AgentServerRef]] = {
    "responses_api_models": ModelServerRef,
    "resources_servers": ResourcesServerRef,
    "responses_api_agents": AgentServerRef,
}


class BaseServerInstanceConfig(BaseServerTypeConfig):
    """A server instance, together with the live block it was read from."""

    model_config = ConfigDict(arbitrary_types_allowed=True, hide_input_in_errors=True)

    name: str
    server_type_config_dict: DictConfig = Field(exclude=True, repr=False)

    @model_validator(mode="after")
    def validate_domain_for_resources_server(self) -> "BaseServerInstanceConfig":
        """Resources servers must say their domain; for the others it means nothing and is taken out."""
        block = self.get_inner_run_server_config_dict()
        if self.SERVER_TYPE == "resources_servers":
            assert self.get_inner_run_server_config().domain is not None, (
                f"a domain is required for resources servers: one of {', '.join(domain.value for domain in Domain)}"
            )
        elif "domain" in block:
            del block["domain"]
            self.get_inner_run_server_config().domain = None
        return self

    def get_server_ref(self) -> ServerRef:
        return _REFS[self.SERVER_TYPE](type=self.SERVER_TYPE, name=self.name)

    @property
    def implementation(self) -> str:
        """The folder the code is in (the third level of the YAML)."""
        implementations: dict[str, BaseRunServerTypeConfig] = getattr(self, self.SERVER_TYPE)
        return next(iter(implementations))

    def get_inner_run_server_config_dict(self) -> DictConfig:
        """The implementation block itself: what is written to it is in the configuration."""
        block: DictConfig = self.server_type_config_dict[self.SERVER_TYPE][self.implementation]
        return block

    def get_inner_run_server_config(self) -> BaseRunServerTypeConfig:
        config: BaseRunServerTypeConfig = getattr(self, self.SERVER_TYPE)[self.implementation]
        return config

    @property
    def datasets(self) -> list[AnyDatasetConfig] | None:
        return self.get_inner_run_server_config().datasets


class ResponsesAPIModelServerInstanceConfig(ResponsesAPIModelServerTypeConfig, BaseServerInstanceConfig):
    pass


class ResourcesServerInstanceConfig(ResourcesServerTypeConfig, BaseServerInstanceConfig):
    pass


class ResponsesAPIAgentServerInstanceConfig(ResponsesAPIAgentServerTypeConfig, BaseServerInstanceConfig):
    pass


ServerInstanceConfig: TypeAlias = (
    ResponsesAPIModelServerInstanceConfig | ResourcesServerInstanceConfig | ResponsesAPIAgentServerInstanceConfig
)
ServerInstanceConfigTypeAdapter: TypeAdapter[ServerInstanceConfig] = TypeAdapter(ServerInstanceConfig)
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "responses_api_models": TypeAdapter(ResponsesAPIModelServerInstanceConfig),
    "resources_servers": TypeAdapter(ResourcesServerInstanceConfig),
    "responses_api_agents": TypeAdapter(ResponsesAPIAgentServerInstanceConfig),
}


def maybe_get_server_instance_config(
    name: str, server_type_config_dict: Any
) -> tuple[ServerInstanceConfig | None, ValidationError | None]:
    """The server instance under this name, or why it is none. (None, None) for anything but a `DictConfig`."""
    if not isinstance(server_type_config_dict, DictConfig):
        return None, None
    plain = OmegaConf.to_container(server_type_config_dict, resolve=True)
    return read_server_instance(name, plain, server_type_config_dict) if isinstance(plain, dict) else (None, None)


def read_server_instance(
    name: str, plain: Mapping[Any, Any], live: DictConfig
) -> tuple[ServerInstanceConfig | None, ValidationError | None]:
    """The same from a block whose interpolations are resolved already; `live` is the block itself."""
    fields: dict[str, Any] = {str(key): value for key, value in plain.items()}
    fields |= {"name": name, "server_type_config_dict": live}
    # ask only the classes it can be, so that the error is about what was meant
    candidates = [_ADAPTERS[kind] for kind in SERVER_TYPES if kind in fields]
    first_error: ValidationError | None = None
    for candidate in candidates or [ServerInstanceConfigTypeAdapter]:
        try:
            return candidate.validate_python(fields), None
        except ValidationError as error:
            first_error = first_error or error
    return None, first_error


def is_almost_server(server_type_config_dict: Any) -> bool:
    """Whether this has the shape of a server instance, valid or not."""
    if not isinstance(server_type_config_dict, Mapping):
        return False
    for kind in SERVER_TYPES:
        implementations = server_type_config_dict.get(kind)
        if isinstance(implementations, Mapping) and any(
            isinstance(block, Mapping) and "entrypoint" in block for block in implementations.values()
        ):
            return True
    return False
