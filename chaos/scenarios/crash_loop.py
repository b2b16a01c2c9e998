"""A server crashes at most requests, or at every start.

In the first case every rollout that does not crash it is scored in the same run. In the second it is given up: the run
ends soon, with status 3, and can be continued after the repair.
"""

import random
import time
from pathlib import Path

from chaos.evaluation import BrokenPromise, read_records, rollout_id
from chaos.faulty_server import CRASHES, FAULTY, FaultyEvaluation

MAX_SECONDS = 60.0


def run_seed(folder: Path, seed: int) -> str:
    """Crash one server at most verifications, or break its start, as the seed determines."""
    return crash_at_start(folder) if seed % 3 == 2 else crash_at_most_rows(folder, seed)


def crash_at_most_rows(folder: Path, seed: int) -> str:
    """Let most rows end the server, in a cell or in a separate process, with few or all rows in flight."""
    chance = random.Random(seed)
    fault, hosting, concurrency = (
        CRASHES[seed % len(CRASHES)],
        chance.choice(("cell", "process")),
        chance.choice((2, 72)),
    )
    tasks = chance.choice((6, 6, 6, 12))
    faults = dict.fromkeys(chance.sample(range(tasks), tasks * 2 // 3), fault)
    job = FaultyEvaluation(
        folder, faults, tasks=tasks,
        overrides=[f"+faulty.resources_servers.faulty.hosting={hosting}", f"--concurrency={concurrency}",
                   "--max-attempts=1"],
    )  # fmt: skip
    status, report = job.run()
    if status != 1:
        raise BrokenPromise(f"the run ended with status {status} and {report}:\n{job.log_tail()}")
    job.check_results()
    check_attempts(job)
    return f"{fault} in a {hosting}, {concurrency} in flight"


def crash_at_start(folder: Path) -> str:
    """Let a row break the server so that it cannot be restarted; then repair it and resume."""
    job = FaultyEvaluation(
        folder, {0: "break"}, tasks=6,
        overrides=["+faulty.resources_servers.faulty.hosting=process", "--concurrency=2", "--max-attempts=1"],
    )  # fmt: skip
    begin = time.monotonic()
    status, report = job.run()
    seconds = time.monotonic() - begin
    if status != 3 or FAULTY not in str(report.get("error")):
        raise BrokenPromise(f"the run ended with status {status} and {report}:\n{job.log_tail()}")
    if seconds > MAX_SECONDS:
        raise BrokenPromise(f"the run took {seconds:.0f} s after its server was given up")
    if "--resume" not in str(report.get("next")):
        raise BrokenPromise(f"the report does not say how to continue: {report}")
    job.check_results(may_miss_faulty=True)
    check_attempts(job)
    for _ in range(job.repeats):  # each repeat of the row breaks the server once
        (folder / "resources_servers" / "faulty" / "broken").unlink(missing_ok=True)
        status, _ = job.run("--resume")
    if status != 1:
        raise BrokenPromise(f"the resume ended with status {status}:\n{job.log_tail()}")
    job.check_results()
    return f"the server could not be restarted, {seconds:.0f} s"


def check_attempts(job: FaultyEvaluation) -> None:
    """Fail if a rollout that did not end the server counts an attempt."""
    for record in read_records(job.failures):
        if rollout_id(record) not in job.faulty_ids() and record["_ng_failure"].get("counted") is not False:
            raise BrokenPromise(f"a rollout that did not end its server counts an attempt: {record}")
