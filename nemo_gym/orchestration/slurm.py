"""One sbatch script per benchmark: start the services, wait until they are ready, evaluate, end them."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.orchestration.config import BenchmarkJob, Service, SubmitConfig

ROLLOUTS = "artifacts/rollouts.jsonl"

PROBE_SECONDS = 10
"""How long one look whether a service is ready may take."""


@dataclass(frozen=True)
class Script:
    """A benchmark's script and the folder it belongs to."""

    benchmark: str
    folder: Path
    text: str

    @property
    def path(self) -> Path:
        return self.folder / "job.sh"


def scripts(config: SubmitConfig, stamp: str) -> list[Script]:
    """The script of every benchmark, below `<output_path>/gym-job-<stamp>/`."""
    root = config.job.output_path / f"gym-job-{stamp}"
    return [
        Script(name, root / name, _script(config, name, job, root / name))
        for name, job in config.driver.benchmarks.items()
    ]


def _script(config: SubmitConfig, benchmark: str, job: BenchmarkJob, folder: Path) -> str:
    lines = ["#!/bin/bash", *_directives(config, benchmark, folder), "", "set -euo pipefail"]
    lines += [f"cd {shlex.quote(str(folder))}", "mkdir -p logs artifacts", ""]
    if config.services:
        lines += ["pids=()", "trap 'kill \"${pids[@]}\" 2>/dev/null || true' EXIT", ""]
    for name, service in config.services.items():
        lines += [*_service(config, name, service), ""]
    return "\n".join([*lines, *_driver(config, benchmark, job), ""])


def _directives(config: SubmitConfig, benchmark: str, folder: Path) -> Iterator[str]:
    cluster = config.cluster
    said: dict[str, Any] = {
        "job-name": f"gym-{benchmark.replace('/', '-')}",
        "account": cluster.account,
        "time": cluster.walltime,
        "output": str(folder / "logs" / "job-%j.log"),
    }
    for key, value in said.items():
        if value is not None:
            yield f"#SBATCH --{key}={value}"
    for argument in cluster.extra_args:
        yield f"#SBATCH {argument}"
    for number, pool in enumerate(cluster.node_pools.values()):
        if number:
            yield "#SBATCH hetjob"
        wanted = {
            "partition": pool.partition,
            "nodes": pool.nodes,
            "ntasks-per-node": pool.ntasks_per_node,
            "gpus-per-node": pool.gpus_per_node,
        }
        yield from (f"#SBATCH --{key}={value}" for key, value in wanted.items() if value is not None)
        yield from (f"#SBATCH {argument}" for argument in pool.extra_args)


def _srun(container: str, mounts: Sequence[str], env: Mapping[str, str], group: int | None) -> list[str]:
    words = ["srun", "--overlap", f"--container-image={container}"]
    words += [f"--container-mounts={','.join(mounts)}"] if mounts else []
    words += [f"--het-group={group}"] if group is not None else []
    words += [f"--export={','.join(['ALL', *(f'{name}={value}' for name, value in env.items())])}"] if env else []
    return words


def _service(config: SubmitConfig, name: str, service: Service) -> Iterator[str]:
    pools = list(config.cluster.node_pools)
    group = pools.index(service.placement) if service.placement and len(pools) > 1 else None
    words = [*_srun(service.container, service.mounts, service.env, group), *_command(service)]
    for number in range(service.number_of_instances):
        log = f"logs/{name}{f'-{number}' if service.number_of_instances > 1 else ''}.log"
        yield f"{shlex.join(words)} > {shlex.quote(log)} 2>&1 & pids+=($!)"
    check = service.health_check
    if check is None:
        return
    url = f"http://localhost:{check.port or service.port}{check.path}"
    late = f"{name} is not ready after {check.timeout_seconds} s"
    yield "SECONDS=0"
    yield f"until curl -fsS --max-time {PROBE_SECONDS} -o /dev/null {shlex.quote(url)}; do"
    yield f"  if (( SECONDS > {check.timeout_seconds} )); then echo {shlex.quote(late)}; exit 3; fi"
    yield f'  kill -0 "${{pids[-1]}}" || {{ echo {shlex.quote(f"{name} ended before it was ready")}; exit 3; }}'
    yield "  sleep 2"
    yield "done"


def _command(service: Service) -> list[str]:
    if service.type == "ray":
        return ["ray", "start", "--head", "--block", f"--port={service.port}"]
    words = ["vllm", "serve", str(service.model), "--port", str(service.port)]
    words += ["--tensor-parallel-size", str(service.tensor_parallel_size)]
    words += ["--pipeline-parallel-size", str(service.pipeline_parallel_size)]
    words += ["--trust-remote-code"] if service.trust_remote_code else []
    return words + (
        ["--distributed-executor-backend", service.distributed_backend] if service.distributed_backend else []
    )


def _driver(config: SubmitConfig, benchmark: str, job: BenchmarkJob) -> Iterator[str]:
    driver = config.driver
    steps = []
    if driver.gym_install is not None:
        steps.append(shlex.join(["pip", "install", f"git+{driver.gym_install.repo}@{driver.gym_install.ref}"]))
    steps.append(shlex.join(["gym", "eval", "prepare", "--benchmark", benchmark, *_overrides(job.prepare)]))
    run = ["gym", "eval", "run", "--benchmark", benchmark, f"+output_jsonl_fpath={ROLLOUTS}"]
    steps.append(shlex.join([*run, *_model(config), *_overrides(job.run)]))
    words = [*_srun(driver.container, driver.mounts, driver.env, None), "bash", "-euc", " && ".join(steps)]
    yield shlex.join(words)


def _model(config: SubmitConfig) -> list[str]:
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


def _overrides(values: Mapping[str, Any]) -> list[str]:
    return [f"++{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
