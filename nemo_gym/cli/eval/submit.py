"""Evaluate on a Slurm cluster: one job per benchmark, with the services it needs. Experimental.

The file of --config describes the services to run during the evaluation, their nodes, and the benchmarks to evaluate;
further words override its keys (driver.container=…). Scripts, logs and results are written below job.output_path. Exit
status: 0 submitted, 1 the file is not valid, 2 wrong usage, 3 sbatch is missing or rejected a job.

  gym eval submit --config submit.yaml --dry-run
"""

import argparse
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.errors import GymError

SUBMIT_SECONDS = 120


class NotSubmitted(GymError):
    """A job was not submitted; the message names the jobs that were submitted before it."""

    exit_status = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", required=True, metavar="FILE", help="description of the jobs and the cluster")
    flags = options.FlagGroup(parser)
    flags.switch("--dry-run", "print the scripts, write and submit nothing")
    flags.json()


def run(args: argparse.Namespace) -> int:
    from nemo_gym.catalog.atomic_files import whole_file
    from nemo_gym.launch.slurm import job_scripts, read_submit_config

    config = read_submit_config(Path(args.config), args.overrides)
    jobs = job_scripts(config, datetime.now(UTC).strftime("%Y%m%d-%H%M%S"))
    if args.dry_run:
        scripts = {job.benchmark: {"script": str(job.path), "text": job.text} for job in jobs}
        text = "\n".join(f"# {job.path}\n{job.text}" for job in jobs)
        output.write_result(scripts, lambda: output.write(text), as_json=args.json)
        return 0
    if shutil.which("sbatch") is None:
        raise NotSubmitted("sbatch is not installed", fix="run this on a login node, or use --dry-run")
    for job in jobs:
        for folder in ("logs", "artifacts"):
            (job.folder / folder).mkdir(parents=True, exist_ok=True)
        with whole_file(job.path) as file:
            file.write(job.text.encode())
    job_ids: dict[str, str] = {}
    for job in jobs:
        earlier = ", ".join(f"{benchmark} ({job_id})" for benchmark, job_id in job_ids.items())
        try:
            job_ids[job.benchmark] = _submit(job.path)
        except NotSubmitted as error:
            problem = f"{error.problem}; submitted before: {earlier}" if earlier else error.problem
            raise NotSubmitted(problem, where=job.benchmark) from None
        if not args.json:
            output.write(f"{job.benchmark}: {job_ids[job.benchmark]}  {job.path}")
    if args.json:
        output.write_json({job.benchmark: {"job": job_ids[job.benchmark], "script": str(job.path)} for job in jobs})
    return 0


def _submit(script: Path) -> str:
    """Submit a job and return its id."""
    command = ["sbatch", "--parsable", str(script)]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=SUBMIT_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotSubmitted(f"sbatch did not answer in {SUBMIT_SECONDS} s") from None
    if process.returncode:
        last_line = (process.stderr.strip() or "no reason was given").splitlines()[-1]
        raise NotSubmitted(f"sbatch rejected the job: {last_line}")
    return process.stdout.strip()
