"""What a file for `gym eval submit` says: services beside the evaluation, the cluster, the evaluation itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nemo_gym.errors import ConfigError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class HealthCheck(_Strict):
    """Where a service says that it is ready, and how long it may take."""

    path: str = "/health"
    port: int | None = None
    timeout_seconds: int = Field(default=60, ge=1)


class Service(_Strict):
    """A program that runs beside the evaluation, in a container."""

    type: Literal["vllm", "ray"]
    container: str
    placement: str | None = None
    """The node pool it runs on; the first one if it does not matter."""
    health_check: HealthCheck | None = None
    env: dict[str, str] = {}
    mounts: list[str] = []
    model: str | None = None
    port: int = 8000
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    trust_remote_code: bool = False
    number_of_instances: int = Field(default=1, ge=1)
    distributed_backend: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.type == "vllm" and not self.model:
            raise ValueError("a vllm service needs a model")
        return self


class NodePool(_Strict):
    """Nodes of one kind."""

    partition: str | None = None
    nodes: int = Field(default=1, ge=1)
    ntasks_per_node: int = Field(default=1, ge=1)
    gpus_per_node: int | None = None
    extra_args: list[str] = []


class Compute(_Strict):
    """The cluster."""

    type: Literal["slurm"]
    account: str | None = None
    hostname: str | None = None
    walltime: str = "04:00:00"
    node_pools: dict[str, NodePool] = Field(min_length=1)
    extra_args: list[str] = []


class GymInstall(_Strict):
    """Which NeMo Gym the job installs; the one of its container if nothing is said."""

    repo: str
    ref: str = "main"


class BenchmarkJob(_Strict):
    """Overrides of `gym eval prepare` and `gym eval run` for one benchmark."""

    prepare: dict[str, Any] = {}
    run: dict[str, Any] = {}


class Driver(_Strict):
    """The evaluation itself."""

    container: str = "python:3.12"
    gym_install: GymInstall | None = None
    policy_model: str | None = None
    """The service that is evaluated."""
    benchmarks: dict[str, BenchmarkJob] = Field(min_length=1)
    env: dict[str, str] = {}
    mounts: list[str] = []


class Job(_Strict):
    """Where scripts, logs and results go."""

    output_path: Path


class SubmitConfig(_Strict):
    """A whole file."""

    services: dict[str, Service] = {}
    compute: dict[str, Compute] = Field(min_length=1, max_length=1)
    driver: Driver
    job: Job

    @model_validator(mode="after")
    def _connected(self) -> Self:
        model = self.driver.policy_model
        if model is not None and model not in self.services:
            raise ValueError(f"driver.policy_model: there is no service '{model}'")
        pools = next(iter(self.compute.values())).node_pools
        for name, service in self.services.items():
            if service.placement is not None and service.placement not in pools:
                raise ValueError(f"services.{name}.placement: there is no node pool '{service.placement}'")
        return self

    @property
    def cluster(self) -> Compute:
        return next(iter(self.compute.values()))


def read_submit_config(path: Path, overrides: Sequence[str]) -> SubmitConfig:
    """The file with overrides (`a.b=c`, a leading `+` does not matter) on top.

    Raises:
        ConfigError: it cannot be read or does not fit; with every problem.
    """
    try:
        base = OmegaConf.create(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        merged = OmegaConf.merge(base, OmegaConf.from_dotlist([word.lstrip("+") for word in overrides]))
        plain = OmegaConf.to_container(merged, resolve=True)
    except OSError as error:
        raise ConfigError(error.strerror or str(error), where=str(path)) from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(str(error).splitlines()[0], where=str(path)) from None
    try:
        return SubmitConfig.model_validate(plain)
    except ValidationError as error:
        told = [f"{'.'.join(map(str, p['loc'])) or 'file'}: {p['msg']}" for p in error.errors()]
        raise ConfigError("; ".join(told).replace("file: Value error, ", ""), where=str(path)) from None
