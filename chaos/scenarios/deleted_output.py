"""Delete, move, replace or cut files of a run while it is running: no result may be lost without an error."""

import os
import random
from collections.abc import Callable
from pathlib import Path

from chaos.evaluation import BrokenPromise, Evaluation, read_records, rollout_id, wait_for
from chaos.scenarios.kills import undisturbed_run


def delete(path: Path, _chance: random.Random) -> None:
    path.unlink()


def delete_all(path: Path, _chance: random.Random) -> None:
    for file in path.parent.glob("rollouts*.json*"):
        file.unlink()


def move_away(path: Path, _chance: random.Random) -> None:
    path.rename(path.with_name("moved"))


def replace(path: Path, _chance: random.Random) -> None:
    other = path.with_name("other")
    other.write_text("{}\n")
    other.replace(path)


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


HARMLESS = (delete, delete_all, move_away)
"""Disturbances after which the run ends as if nothing had happened."""
DISTURBANCES: tuple[Callable[[Path, random.Random], None], ...] = (*HARMLESS, replace, cut)


def run_seed(folder: Path, seed: int) -> str:
    """Disturb the output after a random number of results; the results must be complete, or the run must say so."""
    baseline = undisturbed_run()
    chance = random.Random(seed)
    disturb = DISTURBANCES[seed % len(DISTURBANCES)]
    job = Evaluation(folder, cells=1)
    count = chance.randint(1, len(job.rollout_ids()) - 12)  # the run must not end before the disturbance
    with job.running() as process:
        wait_for(lambda: process.poll() is not None or stored_count(job) >= count, "storing results", 60.0)
        before = {rollout_id(record) for record in read_complete_records(job.output)}
        disturb(job.output, chance)
        status, report = job.finish(process)
    if status != (0 if disturb in HARMLESS else 3):
        raise BrokenPromise(f"after {disturb.__name__} the run ended with status {status}:\n{job.log_tail()}")
    if disturb in HARMLESS and job.rewards() != baseline.rewards:
        raise BrokenPromise(f"after {disturb.__name__} results are missing although the run ended with status 0")
    if disturb is replace:
        saved = job.folder / "rollouts_recovered.jsonl"
        if not before <= {rollout_id(record) for record in read_records(saved)}:
            raise BrokenPromise("results that were stored before the output was replaced are not saved")
        saved.replace(job.output)
    if disturb is cut and "--resume" not in report.get("error", ""):
        raise BrokenPromise(f"the error does not say how to go on: {report}")
    job.resume_until_scored()
    if job.rewards() != baseline.rewards:
        raise BrokenPromise("the rewards differ from those of the undisturbed run")
    return f"{disturb.__name__} after {count} results; all are stored"


def stored_count(job: Evaluation) -> int:
    return job.output.read_bytes().count(b"\n") if job.output.exists() else 0


def read_complete_records(path: Path) -> list[dict[str, object]]:
    """Read the records while the run writes them, without a line that is being written."""
    content = path.read_bytes()
    complete = path.with_name("complete")
    complete.write_bytes(content[: content.rfind(b"\n") + 1])
    return read_records(complete)
