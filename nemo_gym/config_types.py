# mypy: implicit-reexport
# ruff: noqa: F401 - the imported names are the public names of this module
"""Public names of the configuration classes, which `nemo_gym.config` and `nemo_gym.wire` define."""

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.schema_cli import (
    DEPRECATED_UPLOAD_ROLLOUTS_KEY,
    BaseNeMoGymCLIConfig,
    ExporterConfig,
    MLFlowConfig,
    OTelConfig,
    UploadRolloutsConfigMixin,
    WANDBConfig,
)
from nemo_gym.config.schema_datasets import (
    BaseUploadJsonlDatasetHuggingFaceConfig,
    BenchmarkDatasetConfig,
    DatasetConfig,
    DatasetSource,
    DatasetType,
    DeleteJsonlDatasetGitlabConfig,
    DownloadJsonlDatasetGitlabConfig,
    DownloadJsonlDatasetHuggingFaceConfig,
    GitlabDatasetSource,
    HuggingFaceDatasetSource,
    JsonlDatasetGitlabIdentifer,
    JsonlDatasetHuggingFaceIdentifer,
    License,
    UploadJsonlDatasetGitlabConfig,
    UploadJsonlDatasetHuggingFaceConfig,
    UploadJsonlDatasetHuggingFaceMaybeDeleteConfig,
)
from nemo_gym.config.schema_servers import (
    BaseRunServerConfig,
    BaseRunServerInstanceConfig,
    BaseRunServerTypeConfig,
    BaseServerConfig,
    BaseServerInstanceConfig,
    BaseServerTypeConfig,
    Domain,
    ResourcesServerInstanceConfig,
    ResourcesServerTypeConfig,
    ResponsesAPIAgentServerInstanceConfig,
    ResponsesAPIAgentServerTypeConfig,
    ResponsesAPIModelServerInstanceConfig,
    ResponsesAPIModelServerTypeConfig,
    ServerInstanceConfig,
    ServerInstanceConfigTypeAdapter,
    ServerRef,
    ServerRefTypeAdapter,
    ServerTypeConfig,
    is_almost_server,
    is_server_ref,
    maybe_get_server_instance_config,
)
from nemo_gym.config.secrets import Secret
from nemo_gym.errors import (
    AlmostServerError,
    ConfigError,
    ConfigInterpolationError,
    ConfigMissingValuesError,
    ConfigPathNotFoundError,
    InheritPathNotFoundError,
    MalformedConfigPathsError,
    NoServerInstancesError,
    ServerRefNotFoundError,
)
from nemo_gym.keys import AGENT_REF_KEY_NAME as AGENT_REF_KEY
from nemo_gym.keys import ROLLOUT_PATH_PREFIX, TOKEN_CAPTURE_PATH_SEGMENT
from nemo_gym.metrics.aggregate import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.wire.server_refs import AgentServerRef, ModelServerRef, ResourcesServerRef
