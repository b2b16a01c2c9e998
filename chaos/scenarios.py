"""The disturbances: a killed process, a faulty model endpoint, a suspended server. Each is followed by a resume.

Afterwards every rollout must be stored exactly once with the reward of an undisturbed run, and no process, torn line
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

from chaos.endpoint import FaultyEndpoint, serving
from chaos.evaluation import BrokenPromise, Evaluation, RolloutId, read_records, rollout_id, send_signal, wait_for
from nemo_gym.launch.run_registry import live_runs

COLLECTOR, CELL, SERVER = "collector", "cell", "server"
VICTIMS = (COLLECTOR, CELL, SERVER)
MAX_START_SECONDS = 30.0
FAULT_SHARE = 0.1


@dataclass(frozen=True)
class Baseline:
    """The results of the same evaluation without a disturbance."""

    rewards: dict[RolloutId, float]
    files: set[str]
    seconds: float


@dataclass(frozen=True)
class KilledRun:
    """The victim of one disturbed run and the number of rollouts stored before its last resume."""

    seed: int
    victim: str
    stored_before_resume: int


def run_undisturbed(folder: Path) -> Baseline:
    """Run the evaluation without a disturbance."""
    job = Evaluation(folder)
    begin = time.monotonic()
    status, _ = job.run()
    if status:
        raise BrokenPromise(f"the undisturbed run ended with status {status}:\n{job.log_tail()}")
    return Baseline(job.rewards(), files_of(job), time.monotonic() - begin)


def run_with_kill(folder: Path, seed: int, baseline: Baseline) -> KilledRun:
    """Kill the process and at the moment that the seed determines; kill half of the resumed runs as well."""
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
    stray = files_of(job) - baseline.files - {"rollouts_failures.jsonl"}
    if stray:
        raise BrokenPromise(f"left behind: {sorted(stray)}")
    return KilledRun(seed, victim, stored)


def kill_victim(
    job: Evaluation, process: "subprocess.Popen[str]", victim: str, chance: random.Random, usual_seconds: float
) -> None:
    """Kill the victim at a random moment; a run whose collector survives must end without help."""
    if victim == COLLECTOR:
        wait_until(time.monotonic() + chance.uniform(0.0, usual_seconds), process)
        send_signal(process.pid, signal.SIGKILL)
        process.wait()
        job.check_no_process_is_left()
        return
    pids = server_pids(process, job)
    wait_until(time.monotonic() + chance.uniform(0.0, max(usual_seconds - 1.0, 0.5)), process)
    name = "arithmetic" if victim == SERVER else "policy_model"
    send_signal(pids[name], signal.SIGKILL)
    status, _ = job.finish(process)
    if status not in (0, 1):
        raise BrokenPromise(f"after its {victim} was killed the run ended with status {status}:\n{job.log_tail()}")


def wait_until(moment: float, process: "subprocess.Popen[str]") -> None:
    """Wait until the moment or the end of the run, whichever comes first."""
    while process.poll() is None and time.monotonic() < moment:
        time.sleep(0.005)


def server_pids(process: "subprocess.Popen[str]", job: Evaluation) -> dict[str, int]:
    """Return the process id of every server of a run, once the servers are up."""

    def head_ports() -> list[int]:
        return [run.port for run in live_runs() if run.pid == process.pid]

    try:
        wait_for(lambda: bool(head_ports()) or process.poll() is not None, "starting the servers", MAX_START_SECONDS)
        url = f"http://127.0.0.1:{head_ports()[0]}/server_instances"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return {instance["process_name"]: instance["pid"] for instance in json.loads(answer.read())}
    except (OSError, IndexError) as error:
        raise BrokenPromise(f"the run ended before it could be disturbed ({error}):\n{job.log_tail()}") from error


def files_of(job: Evaluation) -> set[str]:
    return {path.name for path in job.folder.iterdir()}


def run_with_endpoint_faults(folder: Path, seed: int) -> str:
    """Run against a faulty endpoint, check that the counts add up, then resume against a healthy one."""
    endpoint = FaultyEndpoint(seed, FAULT_SHARE)
    with serving(endpoint) as url:
        model = {"entrypoint": "app.py", "openai_base_url": url, "openai_api_key": "x", "openai_model": "chaos"}
        job = Evaluation(
            folder,
            model={"responses_api_models": {"openai_model": model}},
            overrides=["+model_call_timeout_seconds=3", "+rollout_timeout_seconds=20"],
            tasks=50,
            repeats=4,
        )
        status, _ = job.run()
        if status not in (0, 1):
            raise BrokenPromise(f"the run ended with status {status}:\n{job.log_tail()}")
        rewards = job.rewards()
        failures = {rollout_id(record) for record in read_records(job.failures)} - set(rewards)
        check_counts(job, status, rewards, failures)
        faults = sum(count for fault, count in endpoint.calls.items() if fault != "none")
        if not faults:
            raise BrokenPromise("the endpoint injected no fault, so the run shows nothing")
        endpoint.fault_share = 0.0
        job.resume_until_scored()
    if set(job.rewards()) != job.rollout_ids():
        raise BrokenPromise("rollouts are missing after a resume against a healthy endpoint")
    return f"{faults} of {endpoint.calls.total()} calls failed, {len(failures)} of {len(job.rollout_ids())} rollouts"


def check_counts(job: Evaluation, status: int, rewards: dict[RolloutId, float], failures: set[RolloutId]) -> None:
    """Fail unless every rollout is scored or failed, every reward is right and the exit status agrees."""
    if set(rewards) | failures != job.rollout_ids():
        raise BrokenPromise(
            f"{len(rewards)} scored and {len(failures)} failed are not all {len(job.rollout_ids())} rollouts"
        )
    if set(rewards.values()) - {1.0}:
        raise BrokenPromise(f"a damaged answer was scored: {rewards}")
    if (status == 0) != (not failures):
        raise BrokenPromise(f"exit status {status} with {len(failures)} failed rollouts")


def run_with_suspended_server(folder: Path) -> str:
    """Suspend a server with SIGSTOP; its rollouts must time out, name the server and be scored after a resume."""
    job = Evaluation(folder, overrides=["+rollout_timeout_seconds=3", "+max_rollout_attempts=1"], tasks=4, repeats=2)
    with job.running() as process:
        send_signal(server_pids(process, job)["arithmetic"], signal.SIGSTOP)
        status, _ = job.finish(process)
    if status != 1:
        raise BrokenPromise(f"the run ended with status {status} although a server was suspended:\n{job.log_tail()}")
    failures = read_records(job.failures)
    kinds = {record["_ng_failure_class"] for record in failures}
    if kinds != {"timeout"}:
        raise BrokenPromise(f"the failures are of kind {sorted(kinds)} instead of timeout")
    if {record["_ng_failure"]["whom"] for record in failures} != {"arithmetic"}:
        raise BrokenPromise("the failures do not name the suspended server")
    job.rewards()
    job.overrides = ["+max_rollout_attempts=3"]  # the single attempt of each rollout is used up
    job.resume_until_scored()
    return f"{len(failures)} rollouts timed out and were scored after a resume"
