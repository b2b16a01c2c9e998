"""The scripts of `gym eval submit` do on a node what the file describes."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.errors import ConfigError
from nemo_gym.launch.slurm import SubmitConfig, job_scripts, read_submit_config
from tests.processes import eventually, is_gone

SRUN = """#!/bin/bash
echo "$@" >> "$CALLS"
[[ "$*" == *"vllm serve"* ]] && echo $$ > "$CALLS.service" && exec sleep 300
exit 0
"""
CURL = """#!/bin/bash
[[ -e "$READY" ]] && [[ -s "$CALLS.service" ]]
"""
"""A service answers once it has started, which happens in the background."""


def make_config(folder: Path, **changes: Any) -> SubmitConfig:
    content = {
        "services": {"model": {"type": "vllm", "container": "image", "model": "m/m", "health_check": {}}},
        "compute": {"here": {"type": "slurm", "account": "a", "node_pools": {"gpu": {"gpus_per_node": 8}}}},
        "driver": {"policy_model": "model", "benchmarks": {"quiz": {"run": {"limit": 3}}, "sums": {}}},
        "job": {"output_path": str(folder)},
    }
    return SubmitConfig.model_validate({**content, **changes})


def run_script(script: str, tmp_path: Path, *, ready: bool) -> tuple["subprocess.CompletedProcess[str]", list[str]]:
    """Run a script with cluster programs that only record their arguments."""
    tools, calls = tmp_path / "bin", tmp_path / "calls"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("curl", CURL), ("sleep", f'#!/bin/bash\nexec {shutil.which("sleep")} "$1"\n')):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    if ready:
        (tmp_path / "ready").touch()
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(calls), "READY": str(tmp_path / "ready")}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False)
    return done, calls.read_text().splitlines() if calls.exists() else []


def test_services_start_before_the_evaluation_and_end_with_it(tmp_path: Path) -> None:
    """A service that survives its job blocks a node that others wait for."""
    (script, other) = job_scripts(make_config(tmp_path), "1")
    script.folder.mkdir(parents=True)

    done, calls = run_script(script.text, tmp_path, ready=True)

    assert done.returncode == 0, done.stderr
    assert other.folder == tmp_path / "gym-job-1" / "sums"
    assert "vllm serve m/m --port 8000" in calls[0]
    assert "gym eval prepare --benchmark quiz && gym eval run --benchmark quiz" in calls[1]
    assert "+policy_base_url=http://localhost:8000/v1" in calls[1]
    assert "++limit=3" in calls[1]
    assert eventually(lambda: is_gone(int((tmp_path / "calls.service").read_text())))


def test_a_service_that_is_never_ready_ends_the_job(tmp_path: Path) -> None:
    """A typo must not keep eight GPUs idle until the walltime is over."""
    services = {
        "model": {"type": "vllm", "container": "i", "model": "m", "health_check": {"timeout_seconds": 1}},
    }
    (script, _) = job_scripts(make_config(tmp_path, services=services), "1")
    script.folder.mkdir(parents=True)

    done, calls = run_script(script.text, tmp_path, ready=False)

    assert done.returncode == 3
    assert "model is not ready after 1 s" in done.stdout
    assert not [call for call in calls if "gym eval run" in call]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("driver.policy_model=nobody", "unknown service 'nobody'"),
        ("services.model.placement=cpu", "unknown node pool 'cpu'"),
        ("services.model.model=null", "needs a model"),
        ("+driver.contaner=x", "driver.contaner"),
    ],
)
def test_an_invalid_file_is_refused_with_the_key(tmp_path: Path, override: str, problem: str) -> None:
    """A submitted job waits for hours: mistakes must show before."""
    path = tmp_path / "submit.yaml"
    path.write_text(yaml.safe_dump(make_config(tmp_path).model_dump(mode="json", exclude_unset=True)))

    with pytest.raises(ConfigError, match=r"submit\.yaml") as raised:
        read_submit_config(path, [override])

    assert problem in str(raised.value)


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    """One file serves several clusters."""
    path = tmp_path / "submit.yaml"
    path.write_text(yaml.safe_dump(make_config(tmp_path).model_dump(mode="json", exclude_unset=True)))

    assert (
        read_submit_config(path, ["driver.container=mine", "+compute.here.walltime=01:00:00"]).driver.container
        == "mine"
    )
