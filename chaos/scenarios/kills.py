"""Kill the collector, a cell or a server in a separate process at a random moment; kill half of the resumed runs too.

After the resume every rollout must be stored exactly once with the reward of an undisturbed run, and no process, torn
line or stray file may be left.
"""

import random
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from chaos.commands import Command
from chaos.evaluation import BrokenPromise, Evaluation, RolloutId, send_signal, server_pids, wait_until

COLLECTOR, CELL, SERVER = "collector", "cell", "server"
MAX_EXIT_SECONDS = 10.0
VICTIMS = (COLLECTOR, CELL, SERVER)

_lock = threading.Lock()
_baselines: list["Baseline"] = []


@dataclass(frozen=True)
class Baseline:
    """The results of the same evaluation without a disturbance."""

    rewards: dict[RolloutId, float]
    files: set[str]
    seconds: float


def undisturbed_run() -> Baseline:
    """Run the evaluation once without a disturbance; later calls return the same results."""
    with _lock:
        if not _baselines:
            with tempfile.TemporaryDirectory() as folder:
                job = Evaluation(Path(folder) / "undisturbed")
                begin = time.monotonic()
                status, _ = job.run()
                if status:
                    raise BrokenPromise(f"the undisturbed run ended with status {status}:\n{job.log_tail()}")
                _baselines.append(Baseline(job.rewards(), job.file_names(), time.monotonic() - begin))
        return _baselines[0]


def run_seed(folder: Path, seed: int) -> str:
    """Kill the process and at the moment that the seed determines, then resume until every rollout is scored."""
    baseline = undisturbed_run()
    chance = random.Random(seed)
    job = Evaluation(folder)
    victim = VICTIMS[seed % len(VICTIMS)]
    with job.running() as process:
        kill_victim(job, process, victim, chance, baseline.seconds)
    if chance.random() < 0.5:
        with job.running("--resume") as process:
            kill_victim(job, process, COLLECTOR, chance, baseline.seconds)
    stored = job.output.read_bytes().count(b"\n") if job.output.exists() else 0
    job.resume_until_scored()
    rewards = job.rewards()
    if rewards != baseline.rewards:
        difference = sorted(set(rewards.items()) ^ set(baseline.rewards.items()))
        raise BrokenPromise(f"the rewards differ from those of the undisturbed run: {difference[:6]}")
    stray = job.file_names() - baseline.files - {"rollouts_failures.jsonl"}
    if stray:
        raise BrokenPromise(f"left behind: {sorted(stray)}")
    return f"killed the {victim}; {stored} rollouts were stored before the last resume"


def kill_victim(job: Evaluation, process: Command, victim: str, chance: random.Random, usual_seconds: float) -> None:
    """Kill the victim at a random moment; a run whose collector survives must end without help."""
    if victim == COLLECTOR:
        wait_until(time.monotonic() + chance.uniform(0.0, usual_seconds), process)
        send_signal(process.pid, signal.SIGKILL)
        process.wait(MAX_EXIT_SECONDS)
        job.check_no_process_is_left()
        return
    pids = server_pids(process, job)
    wait_until(time.monotonic() + chance.uniform(0.0, max(usual_seconds - 1.0, 0.5)), process)
    name = "arithmetic" if victim == SERVER else "policy_model"
    send_signal(pids[name], signal.SIGKILL)
    status, _ = job.finish(process)
    if status not in (0, 1):
        raise BrokenPromise(f"after its {victim} was killed the run ended with status {status}:\n{job.log_tail()}")
