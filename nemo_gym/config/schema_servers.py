"""Schema of server instances `<name>: {<type>: {<implementation>: {entrypoint: …}}}` and of references to them."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from omegaconf import DictConfig
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from nemo_gym.config.omegaconf_adapter import as_dict, as_plain_value
from nemo_gym.config.schema_cli import MaskedModel
from nemo_gym.config.schema_datasets import AnyDatasetConfig
from nemo_gym.keys import SERVER_TYPES
from nemo_gym.wire.server_refs import AgentServerRef, ModelServerRef, ResourcesServerRef

ServerType: TypeAlias = Literal["responses_api_models", "resources_servers", "responses_api_agents"]
Hosting: TypeAlias = Literal["cell", "process", "venv"]


ServerRef: TypeAlias = ModelServerRef | ResourcesServerRef | AgentServerRef
ServerRefTypeAdapter: TypeAdapter[ServerRef] = TypeAdapter(ServerRef)


def is_server_ref(config_dict: Any) -> ServerRef | None:
    """Return the value as a server reference; None if it is not one."""
    value = as_plain_value(config_dict)
    if not isinstance(value, dict) or not {"type", "name"} <= value.keys():
        return None
    try:
        return ServerRefTypeAdapter.validate_python(value)
    except ValidationError:
        return None


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
    """The address of a server. Subclasses add fields; secret ones are masked in `repr`."""

    host: str
    port: int
    num_workers: int | None = None

    @model_validator(mode="before")
    @classmethod
    def accept_omegaconf(cls, data: Any) -> Any:
        return as_dict(data) if isinstance(data, DictConfig) else data


class BaseRunServerConfig(BaseServerConfig):
    """A server's address and entrypoint."""

    entrypoint: str
    domain: Domain | None = None
    resources: dict[str, float] | None = None
    """What the server needs of its machine, such as `{GPU: 1}`: `engine: ray` starts it only on nodes that have it."""


class BaseRunServerInstanceConfig(BaseRunServerConfig):
    """A server's address, entrypoint and instance id."""

    name: str


class BaseRunServerTypeConfig(BaseRunServerConfig):
    """An implementation block as written in YAML: host and port may be missing; the server may add fields."""

    model_config = ConfigDict(extra="allow")

    host: str | None = None  # type: ignore[assignment]
    port: int | None = None  # type: ignore[assignment]
    datasets: list[AnyDatasetConfig] | None = None
    hosting: Hosting | None = None
    """The kind of process in which the instance runs; default: the kind that the server class declares."""


class BaseServerTypeConfig(BaseModel):
    """`{<type>: {<implementation>: …}}`; further keys are allowed."""

    model_config = ConfigDict(extra="allow")
    SERVER_TYPE: ClassVar[ServerType]


class ResponsesAPIModelServerTypeConfig(BaseServerTypeConfig):
    SERVER_TYPE: ClassVar[ServerType] = "responses_api_models"

    responses_api_models: dict[str, BaseRunServerTypeConfig] = Field(min_length=1, max_length=1)


class ResourcesServerTypeConfig(BaseServerTypeConfig):
    SERVER_TYPE: ClassVar[ServerType] = "resources_servers"

    resources_servers: dict[str, BaseRunServerTypeConfig] = Field(min_length=1, max_length=1)


class ResponsesAPIAgentServerTypeConfig(BaseServerTypeConfig):
    SERVER_TYPE: ClassVar[ServerType] = "responses_api_agents"

    responses_api_agents: dict[str, BaseRunServerTypeConfig] = Field(min_length=1, max_length=1)


ServerTypeConfig: TypeAlias = (
    ResponsesAPIModelServerTypeConfig | ResourcesServerTypeConfig | ResponsesAPIAgentServerTypeConfig
)


class BaseServerInstanceConfig(BaseServerTypeConfig):
    """A server instance and the OmegaConf block it was read from."""

    model_config = ConfigDict(arbitrary_types_allowed=True, hide_input_in_errors=True)

    name: str
    server_type_config_dict: DictConfig = Field(exclude=True, repr=False)

    @model_validator(mode="after")
    def validate_domain_for_resources_server(self) -> "BaseServerInstanceConfig":
        """Require a domain for resources servers and remove it from other servers, where it has no meaning."""
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
        return ServerRefTypeAdapter.validate_python({"type": self.SERVER_TYPE, "name": self.name})

    @property
    def implementation(self) -> str:
        """The folder of the server's code: the third level of the YAML."""
        implementations: dict[str, BaseRunServerTypeConfig] = getattr(self, self.SERVER_TYPE)
        return next(iter(implementations))

    @property
    def key_path(self) -> tuple[str, str, str]:
        """The keys that lead to the implementation block."""
        return self.name, self.SERVER_TYPE, self.implementation

    def get_inner_run_server_config_dict(self) -> DictConfig:
        """Return the implementation block of the configuration itself, not a copy."""
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
_INSTANCE_CLASSES: tuple[type[ServerInstanceConfig], ...] = get_args(ServerInstanceConfig)


def maybe_get_server_instance_config(
    name: str, server_type_config_dict: Any
) -> tuple[ServerInstanceConfig | None, ValidationError | None]:
    """Return the server instance, or the error if the block is invalid; (None, None) if it is not a `DictConfig`."""
    if not isinstance(server_type_config_dict, DictConfig):
        return None, None
    return read_server_instance(name, as_dict(server_type_config_dict), server_type_config_dict)


def read_server_instance(
    name: str, resolved: Mapping[Any, Any], block: DictConfig
) -> tuple[ServerInstanceConfig | None, ValidationError | None]:
    """Return the server instance of a block, or the error if it is invalid. `resolved` is the block as plain data."""
    fields: dict[str, Any] = {str(key): value for key, value in resolved.items()}
    fields |= {"name": name, "server_type_config_dict": block}
    # validate only against the server types in the block, so that the error is about the intended type
    candidates = [candidate for candidate in _INSTANCE_CLASSES if candidate.SERVER_TYPE in fields]
    first_error: ValidationError | None = None
    for candidate in candidates or _INSTANCE_CLASSES:
        try:
            return candidate.model_validate(fields), None
        except ValidationError as error:
            first_error = first_error or error
    return None, first_error


def is_almost_server(server_type_config_dict: Any) -> bool:
    """Return whether a block has the shape of a server instance with an entrypoint, valid or not."""
    blocks = server_type_config_dict if isinstance(server_type_config_dict, Mapping) else {}
    return any(
        isinstance(fields, Mapping) and "entrypoint" in fields
        for server_type in SERVER_TYPES
        if isinstance(blocks.get(server_type), Mapping)
        for fields in blocks[server_type].values()
    )
