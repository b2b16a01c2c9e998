"""What `gym eval submit` does: write the scripts of a file and hand them to sbatch."""

import argparse
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from nemo_gym.catalog.files import whole_file
from nemo_gym.cli import output
from nemo_gym.cli.options import files_explained
from nemo_gym.errors import GymError
from nemo_gym.orchestration.config import read_submit_config
from nemo_gym.orchestration.slurm import Script, scripts

SUBMIT_SECONDS = 120


class NotSubmitted(GymError):
    """The cluster did not take a job; those that it took before are named."""

    exit_status = 3


def submit(args: argparse.Namespace, rest: Sequence[str]) -> int:
    config = read_submit_config(Path(args.config), rest)
    jobs = scripts(config, datetime.now(UTC).strftime("%Y%m%d-%H%M%S"))
    if args.dry_run:
        told = {job.benchmark: {"script": str(job.path), "text": job.text} for job in jobs}
        output.json(told) if args.json else _show(jobs)
        return 0
    if shutil.which("sbatch") is None:
        raise NotSubmitted("sbatch is not installed here", fix="run this on a login node, or look with --dry-run")
    with files_explained():
        for job in jobs:
            for folder in ("logs", "artifacts"):
                (job.folder / folder).mkdir(parents=True, exist_ok=True)
            with whole_file(job.path) as file:
                file.write(job.text.encode())
    taken: dict[str, str] = {}
    for job in jobs:
        taken[job.benchmark] = _submitted(job, taken)
        if not args.json:
            output.data(f"{job.benchmark}: {taken[job.benchmark]}  {job.path}")
    if args.json:
        output.json({job.benchmark: {"job": taken[job.benchmark], "script": str(job.path)} for job in jobs})
    return 0


def _submitted(job: Script, before: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(job.path)],
            capture_output=True,
            text=True,
            timeout=SUBMIT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotSubmitted(
            f"sbatch did not answer in {SUBMIT_SECONDS} s{_so_far(before)}", where=job.benchmark
        ) from None
    if done.returncode:
        last = (done.stderr.strip() or "no reason was given").splitlines()[-1]
        raise NotSubmitted(f"sbatch refused: {last}{_so_far(before)}", where=job.benchmark)
    return done.stdout.strip()


def _so_far(taken: dict[str, str]) -> str:
    return f"; submitted before: {', '.join(f'{name} ({job})' for name, job in taken.items())}" if taken else ""


def _show(jobs: Sequence[Script]) -> None:
    for job in jobs:
        output.data(f"# {job.path}\n{job.text}")
