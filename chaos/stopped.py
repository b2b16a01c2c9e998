"""A server that stops without dying (SIGSTOP) is noticed by deadline, named, and does not hold up the run for ever."""

import signal
from pathlib import Path

from chaos.job import Broken, Job, kill, records
from chaos.kills import server_pids


def disturbed(folder: Path) -> str:
    job = Job(folder, overrides=["+rollout_timeout_seconds=3", "+max_rollout_attempts=1"], tasks=4, repeats=2)
    with job.started() as process:
        kill(server_pids(process, job)["arithmetic"], signal.SIGSTOP)
        status, _ = job.finish(process)
    if status != 1:
        raise Broken(f"the run ended with status {status} although a server stood still:\n{job.log_tail()}")
    kinds = {record["_ng_failure_class"] for record in records(job.failures)}
    if kinds != {"timeout"}:
        raise Broken(f"the failures are called {sorted(kinds)} instead of timeout")
    if {record["_ng_failure"]["whom"] for record in records(job.failures)} != {"arithmetic"}:
        raise Broken("the failures do not name the server that stood still")
    job.rewards()
    job.overrides = ["+max_rollout_attempts=3"]  # one was all they had
    job.resume_to_the_end()
    return f"{len(records(job.failures))} rollouts timed out and were scored after resume"
