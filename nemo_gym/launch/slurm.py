"""Slurm jobs of `gym eval submit`: the schema of the configuration file, and one sbatch script per benchmark.

A script starts the services, waits until they are ready, runs the evaluation and stops the services. Experimental.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.errors import ConfigError
from nemo_gym.launch.slurm_cluster import (
    ClusterSettings,
    chain_lines,
    cluster_lines,
    ending_lines,
    engine_words,
    running_seconds,
)

ROLLOUTS = "artifacts/rollouts.jsonl"

PROBE_SECONDS = 10
"""Timeout of one request that checks whether a service is ready."""


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class HealthCheck(_StrictModel):
    """The URL path and port at which a service reports that it is ready, and the timeout."""

    path: str = "/health"
    port: int | None = None
    timeout_seconds: int = Field(default=60, ge=1)


class Service(_StrictModel):
    """A program that runs in a container during the evaluation."""

    type: Literal["vllm", "ray"]
    container: str
    placement: str | None = None
    """The node pool of the service (default: the first one)."""
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
    def _check_model(self) -> Self:
        if self.type == "vllm" and not self.model:
            raise ValueError("a vllm service needs a model")
        return self


class NodePool(_StrictModel):
    """A group of equal nodes."""

    partition: str | None = None
    nodes: int = Field(default=1, ge=1)
    ntasks_per_node: int = Field(default=1, ge=1)
    gpus_per_node: int | None = None
    extra_args: list[str] = []


class Compute(_StrictModel):
    """The cluster."""

    type: Literal["slurm"]
    account: str | None = None
    hostname: str | None = None
    walltime: str = "04:00:00"
    node_pools: dict[str, NodePool] = Field(min_length=1)
    extra_args: list[str] = []


class GymInstall(_StrictModel):
    """The version of NeMo Gym that the job installs; without it the job uses the one in its container."""

    repo: str
    ref: str = "main"


class BenchmarkJob(_StrictModel):
    """Overrides of `gym eval prepare` and `gym eval run` for one benchmark."""

    prepare: dict[str, Any] = {}
    run: dict[str, Any] = {}


class Driver(_StrictModel):
    """The evaluation itself."""

    container: str = "python:3.12"
    gym_install: GymInstall | None = None
    cluster: ClusterSettings | None = None
    """Run the evaluation on all nodes of the job, with Ray."""
    policy_model: str | None = None
    """Name of the service whose model is evaluated."""
    benchmarks: dict[str, BenchmarkJob] = Field(min_length=1)
    env: dict[str, str] = {}
    mounts: list[str] = []


class JobOutput(_StrictModel):
    """The folder of scripts, logs and results."""

    output_path: Path


class SubmitConfig(_StrictModel):
    """The configuration file of `gym eval submit`."""

    services: dict[str, Service] = {}
    compute: dict[str, Compute] = Field(min_length=1, max_length=1)
    driver: Driver
    job: JobOutput

    @model_validator(mode="after")
    def _check_references(self) -> Self:
        model = self.driver.policy_model
        if model is not None and model not in self.services:
            raise ValueError(f"driver.policy_model: unknown service '{model}'")
        for name, service in self.services.items():
            if service.placement is not None and service.placement not in self.cluster.node_pools:
                raise ValueError(f"services.{name}.placement: unknown node pool '{service.placement}'")
        return self

    @property
    def cluster(self) -> Compute:
        return next(iter(self.compute.values()))


def read_submit_config(path: Path, overrides: Sequence[str]) -> SubmitConfig:
    """Read the file and apply overrides (`a.b=c`, with or without a leading `+`).

    Raises:
        ConfigError: the file cannot be read or is not valid, with every problem.
    """
    try:
        base = OmegaConf.create(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        merged = OmegaConf.merge(base, OmegaConf.from_dotlist([word.lstrip("+") for word in overrides]))
        content = as_dict(merged)
    except OSError as error:
        raise ConfigError(error.strerror or str(error), where=str(path)) from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(str(error).splitlines()[0], where=str(path)) from None
    try:
        return SubmitConfig.model_validate(content)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc'])) or 'file'}: {p['msg']}" for p in error.errors()]
        # The messages of our validators start with the path of a key.
        raise ConfigError("; ".join(problems).replace("file: Value error, ", ""), where=str(path)) from None


@dataclass(frozen=True)
class JobScript:
    """The script of one benchmark and its folder."""

    benchmark: str
    folder: Path
    text: str

    @property
    def path(self) -> Path:
        return self.folder / "job.sh"


def job_scripts(config: SubmitConfig, stamp: str) -> list[JobScript]:
    """Return the script of every benchmark, below `<output_path>/gym-job-<stamp>/`."""
    root = config.job.output_path / f"gym-job-{stamp}"
    return [
        JobScript(name, root / name, _script_text(config, name, job, root / name))
        for name, job in config.driver.benchmarks.items()
    ]


def _script_text(config: SubmitConfig, benchmark: str, job: BenchmarkJob, folder: Path) -> str:
    """Return the sbatch script that evaluates one benchmark."""
    lines = ["#!/bin/bash", *_sbatch_lines(config, benchmark, folder), "", "set -euo pipefail"]
    lines += [f"cd {shlex.quote(str(folder))}", "mkdir -p logs artifacts", ""]
    cluster, script = config.driver.cluster, folder / "job.sh"
    if config.services or cluster:
        lines += ["pids=()", "trap 'kill \"${pids[@]}\" 2>/dev/null || true' EXIT", ""]
    for name, service in config.services.items():
        lines += [*_service_lines(config, name, service), ""]
    if cluster is None:
        return "\n".join([*lines, _driver_line(config, benchmark, job), ""])
    nodes = next(iter(config.cluster.node_pools.values())).nodes
    srun = _srun_words(config.driver.container, config.driver.mounts, config.driver.env, None)
    lines += [*chain_lines(cluster, script), *cluster_lines(cluster, nodes, srun), 'export GYM_HEAD="$head_address"']
    seconds = running_seconds(cluster, config.cluster.walltime)
    command = _driver_line(config, benchmark, job)
    lines += ["set +e", f"timeout --signal=TERM --kill-after=120 {seconds} {command}", *ending_lines()]
    return "\n".join([*lines, ""])


def _sbatch_lines(config: SubmitConfig, benchmark: str, folder: Path) -> Iterator[str]:
    """Yield the `#SBATCH` options of the job and of each node pool."""
    cluster = config.cluster
    job_options = {
        "job-name": f"gym-{benchmark.replace('/', '-')}",
        "account": cluster.account,
        "time": cluster.walltime,
        "output": folder / "logs" / "job-%j.log",
    }
    yield from _sbatch_options(job_options, cluster.extra_args)
    for number, pool in enumerate(cluster.node_pools.values()):
        if number:
            yield "#SBATCH hetjob"
        yield from _sbatch_options(pool.model_dump(exclude={"extra_args"}), pool.extra_args)


def _sbatch_options(options: Mapping[str, Any], extra_args: Sequence[str]) -> list[str]:
    """Return a line for every option that is set, such as `#SBATCH --nodes=2`, and for every extra argument."""
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items() if value is not None]
    return [f"#SBATCH {word}" for word in [*words, *extra_args]]


def _srun_words(container: str, mounts: Sequence[str], env: Mapping[str, str], group: int | None) -> list[str]:
    """Return the start of an srun command, without the program. `group` is the index of one of several node pools."""
    words = ["srun", "--overlap", f"--container-image={container}"]
    words += [f"--container-mounts={','.join(mounts)}"] if mounts else []
    words += [f"--het-group={group}"] if group is not None else []
    words += [f"--export={','.join(['ALL', *(f'{name}={value}' for name, value in env.items())])}"] if env else []
    return words


def _service_lines(config: SubmitConfig, name: str, service: Service) -> Iterator[str]:
    """Yield the bash lines that start a service in the background and wait until it is ready."""
    pools = list(config.cluster.node_pools)
    group = pools.index(service.placement) if service.placement and len(pools) > 1 else None
    words = [*_srun_words(service.container, service.mounts, service.env, group), *_service_command(service)]
    for number in range(service.number_of_instances):
        log = f"logs/{name}{f'-{number}' if service.number_of_instances > 1 else ''}.log"
        yield f"{shlex.join(words)} > {shlex.quote(log)} 2>&1 & pids+=($!)"
    check = service.health_check
    if check is None:
        return
    url = f"http://localhost:{check.port or service.port}{check.path}"
    timeout_message = f"{name} is not ready after {check.timeout_seconds} s"
    yield "SECONDS=0"
    yield f"until curl -fsS --max-time {PROBE_SECONDS} -o /dev/null {shlex.quote(url)}; do"
    yield f"  if (( SECONDS > {check.timeout_seconds} )); then echo {shlex.quote(timeout_message)}; exit 3; fi"
    yield f'  kill -0 "${{pids[-1]}}" || {{ echo {shlex.quote(f"{name} ended before it was ready")}; exit 3; }}'
    yield "  sleep 2"
    yield "done"


def _service_command(service: Service) -> list[str]:
    """Return the command that runs a service inside its container."""
    if service.type == "ray":
        return ["ray", "start", "--head", "--block", f"--port={service.port}"]
    words = ["vllm", "serve", str(service.model), "--port", str(service.port)]
    words += ["--tensor-parallel-size", str(service.tensor_parallel_size)]
    words += ["--pipeline-parallel-size", str(service.pipeline_parallel_size)]
    words += ["--trust-remote-code"] if service.trust_remote_code else []
    return words + (
        ["--distributed-executor-backend", service.distributed_backend] if service.distributed_backend else []
    )


def _driver_line(config: SubmitConfig, benchmark: str, job: BenchmarkJob) -> str:
    """Return the bash line that installs NeMo Gym if configured, prepares the benchmark and evaluates it."""
    driver = config.driver
    steps = []
    if driver.gym_install is not None:
        steps.append(shlex.join(["pip", "install", f"git+{driver.gym_install.repo}@{driver.gym_install.ref}"]))
    steps.append(shlex.join(["gym", "eval", "prepare", "--benchmark", benchmark, *_override_arguments(job.prepare)]))
    eval_run = ["gym", "eval", "run", "--benchmark", benchmark, f"+output_jsonl_fpath={ROLLOUTS}"]
    words = shlex.join([*eval_run, *_model_arguments(config), *_override_arguments(job.run)])
    srun = _srun_words(driver.container, driver.mounts, driver.env, None)
    if driver.cluster is not None:
        nodes = next(iter(config.cluster.node_pools.values())).nodes
        # Not quoted: bash inside the container replaces the address of the head.
        words = f"exec {words} {' '.join(engine_words(driver.cluster, nodes))}"
        srun += ["--nodes=1", "--ntasks=1"]
    steps.append(words)
    return shlex.join([*srun, "bash", "-euc", " && ".join(steps)])


def _model_arguments(config: SubmitConfig) -> list[str]:
    """Return the arguments of `gym eval run` that select the evaluated service as the model."""
    name = config.driver.policy_model
    if name is None:
        return []
    service = config.services[name]
    return [
        "--model-type",
        "openai_model",
        f"+policy_base_url=http://localhost:{service.port}/v1",
        f"+policy_model_name={service.model}",
        "+policy_api_key=dummy",
    ]


def _override_arguments(values: Mapping[str, Any]) -> list[str]:
    return [f"++{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
