"""The base of every command's own configuration, and the configurations of the exporters."""

import sys
import warnings
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from nemo_gym.config.secrets import MASK, Shown, is_secret_name

DEPRECATED_UPLOAD_ROLLOUTS_KEY = "upload_rollouts_to_wandb"


class MaskedModel(BaseModel):
    """A model whose `repr` and validation errors never show a secret."""

    model_config = ConfigDict(hide_input_in_errors=True)

    def __repr_args__(self) -> Any:
        for name, value in super().__repr_args__():
            yield name, Shown(value, hidden=name is not None and is_secret_name(name))


class BaseNeMoGymCLIConfig(MaskedModel):
    """What one command reads from the configuration; keys of others are ignored, so the whole tree may be given."""

    @model_validator(mode="before")
    @classmethod
    def pre_process(cls, data: Any) -> Any:
        """Accept an OmegaConf tree, and answer `--help` or `+help=true` with the list of parameters."""
        if isinstance(data, DictConfig):
            data = _plain(data, wanted=cls.model_fields)
        asked = not {"-h", "--help"}.isdisjoint(sys.argv[1:])
        if asked or (isinstance(data, dict) and (data.get("h") or data.get("help"))):
            sys.stdout.write(_parameter_list(cls))
            raise SystemExit(0)
        return data


def _plain(data: DictConfig, *, wanted: dict[str, FieldInfo]) -> dict[str, Any]:
    """The tree as plain data; an interpolation nobody here asks for may stay unresolved."""
    plain: dict[str, Any] = {}
    for key in data:
        try:
            value = data[key]
            plain[str(key)] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except OmegaConfBaseException:
            if key in wanted:
                raise
    return plain


def _parameter_list(config: type[BaseModel]) -> str:
    lines = [(config.__doc__ or config.__name__).strip(), "", "Parameters:"]
    for name, field in config.model_fields.items():
        kind = getattr(field.annotation, "__name__", None) or str(field.annotation).replace("typing.", "")
        default = "[required]" if field.is_required() else f"[default: {_default_text(field)}]"
        lines.append(f"- {name} ({kind}): {field.description or ''} {default}".replace("  ", " "))
    return "\n".join(lines) + "\n"


def _default_text(field: FieldInfo) -> str:
    return "computed" if field.default is PydanticUndefined else repr(field.default)


class ExporterConfig(MaskedModel):
    """What an exporter needs; it is used only when everything it needs is there."""

    @property
    def is_available(self) -> bool:
        return False


class WANDBConfig(ExporterConfig):
    """Where Weights & Biases runs go."""

    wandb_project: str | None = None
    wandb_name: str | None = None
    wandb_api_key: str | None = None

    @property
    def is_available(self) -> bool:
        return bool(self.wandb_project and self.wandb_name and self.wandb_api_key and self.wandb_api_key != MASK)


class MLFlowConfig(ExporterConfig):
    """Where MLflow runs go. The token is optional: many trackers have none."""

    mlflow_tracking_uri: str | None = None
    mlflow_tracking_token: str | None = None
    mlflow_experiment_name: str | None = None
    mlflow_run_name: str | None = None

    @property
    def is_available(self) -> bool:
        named = self.mlflow_tracking_uri and self.mlflow_experiment_name and self.mlflow_run_name
        return bool(named) and self.mlflow_tracking_token != MASK


class UploadRolloutsConfigMixin(BaseModel):
    """Whether exporters receive the rollouts themselves, not only their metrics."""

    upload_rollouts: bool = Field(default=True, description="Upload rollouts to the configured exporters.")

    @model_validator(mode="before")
    @classmethod
    def accept_deprecated_upload_rollouts_key(cls, data: Any) -> Any:
        """Read the older key too; the newer one wins when both are given."""
        if not isinstance(data, dict) or DEPRECATED_UPLOAD_ROLLOUTS_KEY not in data:
            return data
        warnings.warn(
            f"'{DEPRECATED_UPLOAD_ROLLOUTS_KEY}' is now called 'upload_rollouts'", DeprecationWarning, stacklevel=2
        )
        rest = {key: value for key, value in data.items() if key != DEPRECATED_UPLOAD_ROLLOUTS_KEY}
        return {"upload_rollouts": data[DEPRECATED_UPLOAD_ROLLOUTS_KEY], **rest}
