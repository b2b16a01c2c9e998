"""`gym eval submit` writes scripts and hands them over; without a cluster it says so."""

import json
from pathlib import Path

import pytest
import yaml

from nemo_gym.cli.main import main

FILE = {
    "compute": {"here": {"type": "slurm", "node_pools": {"cpu": {}}}},
    "driver": {"benchmarks": {"quiz": {}, "sums": {}}},
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "submit.yaml"
    path.write_text(yaml.safe_dump({**FILE, "job": {"output_path": str(tmp_path / "jobs")}}))
    return str(path)


def sbatch(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that answers like this."""
    folder.mkdir()
    (folder / "sbatch").write_text(f"#!/bin/bash\n{text}\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_dry_run_writes_and_submits_nothing(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Users read the scripts before they use the cluster."""
    assert main(["eval", "submit", "--config", file, "--dry-run"]) == 0

    assert capsys.readouterr().out.count("#!/bin/bash") == 2
    assert not (tmp_path / "jobs").exists()


def test_every_benchmark_is_a_job(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Benchmarks run in parallel and fail separately."""
    sbatch(tmp_path / "bin", "echo 42", monkeypatch)

    assert main(["eval", "submit", "-c", file, "--json"]) == 0

    jobs = json.loads(capsys.readouterr().out)
    assert {name: job["job"] for name, job in jobs.items()} == {"quiz": "42", "sums": "42"}
    assert all(Path(job["script"]).is_file() for job in jobs.values())


def test_a_refused_job_is_reported_with_the_jobs_submitted_before(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that run although the command failed must not be a surprise."""
    sbatch(
        tmp_path / "bin", '[[ "$2" == *quiz* ]] && echo 7 && exit 0\necho "invalid account" >&2; exit 1', monkeypatch
    )

    assert main(["eval", "submit", "-c", file]) == 3

    message = capsys.readouterr().err
    assert "invalid account" in message
    assert "quiz (7)" in message


def test_without_a_cluster_nothing_is_written(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command on the wrong machine must not leave files behind."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert main(["eval", "submit", "-c", file]) == 3

    assert "--dry-run" in capsys.readouterr().err
    assert not (tmp_path / "jobs").exists()
