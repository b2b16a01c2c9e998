"""The scripts of `gym eval submit` start a Ray cluster on the nodes of the job, and resume each other."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch.slurm import SubmitConfig, job_scripts
from nemo_gym.launch.slurm_cluster import walltime_seconds

SRUN = """#!/bin/bash
echo "srun $@" >> "$CALLS"
[[ "$*" == *"hostname --ip-address" ]] && echo "127.0.0.1 10.0.0.1"
[[ "$*" == *"ray start"* ]] && exec sleep 300
# The script starts head and workers in the background: the evaluation ends after both were called.
[[ "$*" == *"gym eval run"* ]] && for _ in {1..300}; do
    (( $(grep -c "ray start" "$CALLS") > 1 )) && break
    sleep 0.1
done
[[ "$*" == *"gym eval run"* ]] && echo "head $GYM_HEAD" >> "$CALLS" && exit "$STATUS"
exit 0
"""
SCONTROL = "#!/bin/bash\necho node-a\necho node-b\n"
SBATCH = '#!/bin/bash\necho "sbatch $@" >> "$CALLS"\n'


def make_config(folder: Path, port: int, walltime: str = "04:00:00", **cluster: int) -> SubmitConfig:
    content = {
        "compute": {"here": {"type": "slurm", "walltime": walltime, "node_pools": {"cpu": {"nodes": 3}}}},
        "driver": {"benchmarks": {"quiz": {}}, "cluster": {"port": port, **cluster}},
        "job": {"output_path": str(folder)},
    }
    return SubmitConfig.model_validate(content)


def run_script(config: SubmitConfig, tmp_path: Path, status: int, **env: str) -> tuple[int, list[str]]:
    """Run the script with cluster programs that record their arguments; return its status and the calls."""
    (script,) = job_scripts(config, "1")
    script.folder.mkdir(parents=True)
    tools, calls = tmp_path / "bin", tmp_path / "calls"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("sbatch", SBATCH)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    variables = {
        "PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(calls), "STATUS": str(status),
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-[a-b]", **env,
    }  # fmt: skip
    ended = subprocess.run(
        ["bash", "-c", script.text], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert "not ready" not in ended.stdout
    return ended.returncode, calls.read_text().splitlines()


@pytest.fixture
def gcs_port():
    """A port that accepts connections, as the head of a started cluster does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.skipif(shutil.which("timeout") is None, reason="needs coreutils")
def test_head_and_workers_start_before_the_evaluation(tmp_path, gcs_port):
    """The head is on the first node, a worker on every other one, and the evaluation uses all of them."""
    status, calls = run_script(make_config(tmp_path, gcs_port), tmp_path, 0)

    assert status == 0
    (head,) = [call for call in calls if f"--head --port={gcs_port}" in call]
    (workers,) = [call for call in calls if f"--address=127.0.0.1:{gcs_port}" in call]
    assert "-w node-a" in head
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 --exclude=node-a" in workers
    (evaluation,) = [call for call in calls if "gym eval run" in call]
    assert f"--engine ray --nodes 3 --resume --ray-address $GYM_HEAD:{gcs_port}" in evaluation
    assert calls[-1] == "head 127.0.0.1"
    assert not [call for call in calls if call.startswith("sbatch")]


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (1, 0), (3, 3), (130, 130)])
def test_only_what_a_resume_can_finish_is_a_failure(tmp_path, gcs_port, status, expected):
    """Slurm starts the next job of the chain only after a failure; failed rollouts alone do not repeat the run."""
    ended, calls = run_script(make_config(tmp_path, gcs_port, jobs=3), tmp_path, status)

    assert ended == expected
    (successor,) = [call for call in calls if call.startswith("sbatch")]
    assert "--dependency=afternotok:7 --kill-on-invalid-dep=yes --export=ALL,GYM_JOBS_LEFT=1" in successor
    assert successor.endswith("gym-job-1/quiz/job.sh")


def test_the_chain_ends(tmp_path, gcs_port):
    """A chain without an end would hold its nodes."""
    _, calls = run_script(make_config(tmp_path, gcs_port, jobs=3), tmp_path, 130, GYM_JOBS_LEFT="0")

    assert not [call for call in calls if call.startswith("sbatch")]


def test_the_evaluation_stops_before_the_walltime(tmp_path):
    """What is in flight at the walltime is lost."""
    (script,) = job_scripts(make_config(tmp_path, 6379, "02:00:00", stop_minutes_before_end=15), "1")

    assert "timeout --signal=TERM --kill-after=120 6300 srun" in script.text
    with pytest.raises(ConfigError, match="leaves no time"):
        job_scripts(make_config(tmp_path, 6379, "00:05:00"), "2")


@pytest.mark.parametrize(
    ("text", "seconds"), [("04:00:00", 14400), ("1-12:00:00", 129600), ("0:30", 1800), ("2-00:00", 172800)]
)
def test_walltimes_are_read_as_slurm_reads_them(text, seconds):
    """Slurm has several forms of a time."""
    assert walltime_seconds(text) == seconds


def test_another_form_of_a_walltime_is_an_error():
    """A guess would stop the run at a wrong time."""
    with pytest.raises(ConfigError, match="is not a walltime"):
        walltime_seconds("four hours")
