"""Base class of the configuration of commands, and the configuration of exporters."""

import sys
import warnings
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from nemo_gym.config.omegaconf_adapter import as_plain_value
from nemo_gym.config.secret_names import is_secret_name
from nemo_gym.config.secret_text import MASK
from nemo_gym.config.secrets import MaskedRepr

DEPRECATED_UPLOAD_ROLLOUTS_KEY = "upload_rollouts_to_wandb"


class MaskedModel(BaseModel):
    """A model whose `repr` and validation errors never contain a secret."""

    model_config = ConfigDict(hide_input_in_errors=True)

    def __repr_args__(self) -> Any:
        for name, value in super().__repr_args__():
            yield name, MaskedRepr(value, secret=name is not None and is_secret_name(name))


class BaseNeMoGymCLIConfig(MaskedModel):
    """The keys that one command reads. Other keys are ignored, so that the whole configuration can be passed."""

    @model_validator(mode="before")
    @classmethod
    def pre_process(cls, data: Any) -> Any:
        """Accept an OmegaConf tree; for `--help` or `+help=true`, print the parameters and exit."""
        if isinstance(data, DictConfig):
            data = _resolve_fields(data, cls.model_fields)
        is_help = not {"-h", "--help"}.isdisjoint(sys.argv[1:])
        if is_help or (isinstance(data, dict) and (data.get("h") or data.get("help"))):
            sys.stdout.write(_parameter_list(cls))
            raise SystemExit(0)
        return data


def _resolve_fields(config: DictConfig, fields: dict[str, FieldInfo]) -> dict[str, Any]:
    """Return the configuration as plain data; keys that are not `fields` are left out if they cannot be resolved."""
    values: dict[str, Any] = {}
    for key in config:
        try:
            values[str(key)] = as_plain_value(config[key])
        except OmegaConfBaseException:
            if key in fields:
                raise
    return values


def _parameter_list(config: type[BaseModel]) -> str:
    """Return the help text of a command: its parameters with type, description and default."""
    lines = [(config.__doc__ or config.__name__).strip(), "", "Parameters:"]
    for name, field in config.model_fields.items():
        type_name = getattr(field.annotation, "__name__", None) or str(field.annotation).replace("typing.", "")
        value = "computed" if field.default is PydanticUndefined else repr(field.default)
        default = "[required]" if field.is_required() else f"[default: {value}]"
        lines.append(f"- {name} ({type_name}): {field.description or ''} {default}".replace("  ", " "))
    return "\n".join(lines) + "\n"


class ExporterConfig(MaskedModel):
    """The settings of an exporter; the exporter is used only if `is_available`."""

    @property
    def is_available(self) -> bool:
        return False


class WANDBConfig(ExporterConfig):
    """The Weights & Biases run to report to."""

    wandb_project: str | None = None
    wandb_name: str | None = None
    wandb_api_key: str | None = None

    @property
    def is_available(self) -> bool:
        return bool(self.wandb_project and self.wandb_name and self.wandb_api_key and self.wandb_api_key != MASK)


class MLFlowConfig(ExporterConfig):
    """The MLflow run to report to. The token is optional, because many trackers need none."""

    mlflow_tracking_uri: str | None = None
    mlflow_tracking_token: str | None = None
    mlflow_experiment_name: str | None = None
    mlflow_run_name: str | None = None

    @property
    def is_available(self) -> bool:
        is_complete = self.mlflow_tracking_uri and self.mlflow_experiment_name and self.mlflow_run_name
        return bool(is_complete) and self.mlflow_tracking_token != MASK


class OTelConfig(ExporterConfig):
    """The OpenTelemetry collector that gets a trace of each rollout."""

    otel_endpoint: str | None = None
    otel_api_key: str | None = None
    otel_service_name: str | None = None

    @property
    def is_available(self) -> bool:
        return bool(self.otel_endpoint) and self.otel_api_key != MASK


class UploadRolloutsConfigMixin(BaseModel):
    """Adds `upload_rollouts`: send rollouts to exporters, not only metrics."""

    upload_rollouts: bool = Field(default=True, description="Upload rollouts to the configured exporters.")

    @model_validator(mode="before")
    @classmethod
    def accept_deprecated_upload_rollouts_key(cls, data: Any) -> Any:
        """Accept the deprecated key; if both keys are set, the current one is used."""
        if not isinstance(data, dict) or DEPRECATED_UPLOAD_ROLLOUTS_KEY not in data:
            return data
        text = f"'{DEPRECATED_UPLOAD_ROLLOUTS_KEY}' is now called 'upload_rollouts'"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        others = {key: value for key, value in data.items() if key != DEPRECATED_UPLOAD_ROLLOUTS_KEY}
        return {"upload_rollouts": data[DEPRECATED_UPLOAD_ROLLOUTS_KEY], **others}
