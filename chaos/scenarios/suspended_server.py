"""Suspend a server with SIGSTOP: its rollouts must time out, name the server and be scored after a resume."""

import signal
from pathlib import Path

from chaos.evaluation import BrokenPromise, Evaluation, read_records, send_signal, server_pids

SHORT_RUNS = 1


def run_seed(folder: Path, seed: int) -> str:  # noqa: ARG001 - the disturbance is always the same
    """Suspend a server with SIGSTOP; its rollouts must time out, name the server and be scored after a resume."""
    job = Evaluation(folder, overrides=["+rollout_timeout_seconds=8", "+max_rollout_attempts=1"], tasks=4, repeats=2)
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
