"""The bash lines of a Slurm job that start a Ray cluster on its nodes, and the chain of jobs that resume it.

The head is on the first node of the job, a worker on each of the other nodes. The evaluation is interrupted before the
walltime ends, so that it stores what is in flight; the next job of the chain resumes it. A job that is killed or loses
a node is resumed in the same way.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.errors import ConfigError

ADDRESS = '"$head_address"'
INTERRUPTED, INCOMPLETE = 130, 1
_WALLTIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d)(?::(?P<seconds>\d\d))?")


class ClusterSettings(BaseModel):
    """A Ray cluster on the nodes of the job, on which `gym eval run --engine ray` runs."""

    model_config = ConfigDict(extra="forbid")

    port: int = Field(default=6379, ge=1, le=65535)
    cpus_per_node: int | None = Field(default=None, ge=1)
    jobs: int = Field(default=1, ge=1, le=100)
    """Number of jobs in the chain: each resumes where the one before stopped."""
    stop_minutes_before_end: int = Field(default=10, ge=1)
    """The evaluation is interrupted this long before the walltime ends."""


def walltime_seconds(text: str) -> int:
    """Return the seconds of a walltime such as `04:00:00` or `1-12:00:00`.

    Raises:
        ConfigError: the text has another form.
    """
    match = _WALLTIME.fullmatch(text)
    if match is None:
        raise ConfigError(f"'{text}' is not a walltime", where="compute.walltime", fix="such as 04:00:00 or 1-12:00:00")
    days, hours, minutes, seconds = (int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def running_seconds(settings: ClusterSettings, walltime: str) -> int:
    """Return the seconds after which the evaluation is interrupted.

    Raises:
        ConfigError: nothing is left of the walltime.
    """
    seconds = walltime_seconds(walltime) - 60 * settings.stop_minutes_before_end
    if seconds < 60:
        problem = f"the walltime {walltime} leaves no time for the evaluation"
        raise ConfigError(problem, where="driver.cluster.stop_minutes_before_end", fix="lower it")
    return seconds


def chain_lines(settings: ClusterSettings, script: Path) -> Iterator[str]:
    """Yield the lines that queue the next job of the chain; Slurm drops it if this one succeeds."""
    if settings.jobs == 1:
        return
    yield f"GYM_JOBS_LEFT=${{GYM_JOBS_LEFT:-{settings.jobs - 1}}}"
    yield "if (( GYM_JOBS_LEFT > 0 )); then"
    yield '  sbatch --dependency="afternotok:$SLURM_JOB_ID" --kill-on-invalid-dep=yes \\'
    yield f'    --export="ALL,GYM_JOBS_LEFT=$(( GYM_JOBS_LEFT - 1 ))" {shlex.quote(str(script))}'
    yield "fi"


def cluster_lines(settings: ClusterSettings, nodes: int, srun: Sequence[str]) -> Iterator[str]:
    """Yield the lines that start the cluster in the background; `srun` is the start of an srun command."""
    start = ["ray", "start", "--block", "--disable-usage-stats"]
    start += [f"--num-cpus={settings.cpus_per_node}"] if settings.cpus_per_node else []
    command, options = shlex.join(srun), shlex.join(start)
    # Not `head`, which ends the pipe before the writer has finished: with pipefail, that ends the job.
    yield 'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")'
    yield 'read -r head_node _ <<< "$nodes"'
    yield 'addresses=$(srun --overlap --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)'
    yield 'read -r head_address _ <<< "$addresses"'
    head = f'{command} --nodes=1 --ntasks=1 -w "$head_node"'
    yield f"{head} {options} --head --port={settings.port} --node-ip-address={ADDRESS} > logs/ray-head.log 2>&1 &"
    yield "pids+=($!)"
    if nodes > 1:
        workers = f'{command} --nodes={nodes - 1} --ntasks={nodes - 1} --ntasks-per-node=1 --exclude="$head_node"'
        yield f"{workers} {options} --address={ADDRESS}:{settings.port} > logs/ray-workers.log 2>&1 &"
        yield "pids+=($!)"
    yield "SECONDS=0"
    yield f'until (exec 3<> "/dev/tcp/$head_address/{settings.port}") 2>/dev/null; do'
    yield "  if (( SECONDS > 300 )); then echo 'the Ray cluster is not ready after 300 s'; exit 3; fi"
    yield "  sleep 2"
    yield "done"


def engine_words(settings: ClusterSettings, nodes: int) -> list[str]:
    """Return the arguments of `gym eval run` for the cluster; the address is a variable of the script."""
    return ["--engine", "ray", "--nodes", str(nodes), "--resume", "--ray-address", f"$GYM_HEAD:{settings.port}"]


def ending_lines() -> Iterator[str]:
    """Yield the lines that end the job by the status of the evaluation: only what --resume can finish is a failure."""
    yield "status=$?"
    yield "set -e"
    yield f"if (( status == {INCOMPLETE} )); then exit 0; fi  # every rollout has run; some have no score"
    yield "exit $status"
