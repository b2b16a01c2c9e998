"""`kill -9` of the collector, a cell or a server with a process of its own, at a random moment, then resume.

Afterwards every rollout must be there exactly once, with the reward of an undisturbed run, and no process, half line
or stray file may be left.
"""

import json
import random
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from chaos.job import Broken, Job, Place, kill, wait_for
from nemo_gym.launch.registry import live_runs

COLLECTOR, CELL, SERVER = "collector", "cell", "server"
VICTIMS = (COLLECTOR, CELL, SERVER)
START_SECONDS = 30.0


@dataclass(frozen=True)
class Undisturbed:
    """What the same job gives when nobody interferes."""

    rewards: dict[Place, float]
    files: set[str]
    seconds: float


@dataclass(frozen=True)
class Killed:
    """One disturbed run and how it went."""

    seed: int
    victim: str
    stored_before_resume: int


def undisturbed(folder: Path) -> Undisturbed:
    job = Job(folder)
    begin = time.monotonic()
    status, _ = job.run()
    if status:
        raise Broken(f"the undisturbed run ended with status {status}:\n{job.log_tail()}")
    return Undisturbed(job.rewards(), files_of(job), time.monotonic() - begin)


def disturbed(folder: Path, seed: int, expected: Undisturbed) -> Killed:
    """One run whose victim and moment the seed decides; twice in four runs the resumed run is killed too."""
    chance = random.Random(seed)
    job = Job(folder)
    victim = VICTIMS[seed % len(VICTIMS)]
    with job.started() as process:
        strike(job, process, victim, chance, expected.seconds)
    if chance.random() < 0.5:
        with job.started("--resume") as process:
            strike(job, process, COLLECTOR, chance, expected.seconds)
    stored = job.output.read_bytes().count(b"\n") if job.output.exists() else 0
    job.resume_to_the_end()
    rewards = job.rewards()
    if rewards != expected.rewards:
        wrong = sorted(set(rewards.items()) ^ set(expected.rewards.items()))
        raise Broken(f"the rewards differ from the undisturbed run's: {wrong[:6]}")
    stray = files_of(job) - expected.files - {"rollouts_failures.jsonl"}
    if stray:
        raise Broken(f"left behind: {sorted(stray)}")
    return Killed(seed, victim, stored)


def strike(
    job: Job, process: "subprocess.Popen[str]", victim: str, chance: random.Random, usual_seconds: float
) -> None:
    """Kill the victim at a moment of its life; a run whose collector lives on must come to its end by itself."""
    if victim == COLLECTOR:
        wait_until(time.monotonic() + chance.uniform(0.0, usual_seconds), process)
        kill(process.pid, signal.SIGKILL)
        process.wait()
        job.check_nothing_is_left()
        return
    pids = server_pids(process, job)
    wait_until(time.monotonic() + chance.uniform(0.0, max(usual_seconds - 1.0, 0.5)), process)
    name = "arithmetic" if victim == SERVER else "policy_model"
    kill(pids[name], signal.SIGKILL)
    status, _ = job.finish(process)
    if status not in (0, 1):
        raise Broken(f"after its {victim} was killed the run ended with status {status}:\n{job.log_tail()}")


def wait_until(moment: float, process: "subprocess.Popen[str]") -> None:
    """Wait for the moment, or for the end of the run if that comes first."""
    while process.poll() is None and time.monotonic() < moment:
        time.sleep(0.005)


def server_pids(process: "subprocess.Popen[str]", job: Job) -> dict[str, int]:
    """The process of every server of a run that is up."""

    def entry() -> list[int]:
        return [run.port for run in live_runs() if run.pid == process.pid]

    try:
        wait_for(lambda: bool(entry()) or process.poll() is not None, "the servers to be up", START_SECONDS)
        url = f"http://127.0.0.1:{entry()[0]}/server_instances"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return {instance["process_name"]: instance["pid"] for instance in json.loads(answer.read())}
    except (OSError, IndexError) as error:
        raise Broken(f"the run ended before it could be disturbed ({error}):\n{job.log_tail()}") from error


def files_of(job: Job) -> set[str]:
    return {path.name for path in job.folder.iterdir()}
