"""A server crashes at most requests until it is given up: the run ends soon, with status 3, and can be continued."""

import random
import time
from pathlib import Path

from chaos.evaluation import BrokenPromise, read_records, rollout_id
from chaos.faulty_server import CRASHES, FaultyEvaluation

MAX_SECONDS = 60.0


def run_seed(folder: Path, seed: int) -> str:
    """Crash one server, in a cell or in a separate process, at most verifications; then run without the faults."""
    chance = random.Random(seed)
    fault, hosting = CRASHES[seed % len(CRASHES)], chance.choice(("cell", "process"))
    job = FaultyEvaluation(
        folder, dict.fromkeys(range(10), fault), tasks=12,
        overrides=[f"+faulty.resources_servers.faulty.hosting={hosting}", "--concurrency=2", "--max-attempts=1"],
    )  # fmt: skip
    begin = time.monotonic()
    status, report = job.run()
    seconds = time.monotonic() - begin
    if status != 3 or "faulty" not in str(report.get("error")):
        raise BrokenPromise(f"the run ended with status {status} and {report}:\n{job.log_tail()}")
    if seconds > MAX_SECONDS:
        raise BrokenPromise(f"the run took {seconds:.0f} s after its server was given up")
    if "--resume" not in str(report.get("next")):
        raise BrokenPromise(f"the report does not say how to continue: {report}")
    job.check_results(may_miss_faulty=True)
    for record in read_records(job.failures):
        if rollout_id(record) not in job.faulty_ids() and record["_ng_failure"].get("counted") is not False:
            raise BrokenPromise(f"a rollout that did not end its server counts an attempt: {record}")
    return f"{fault} in a {hosting}, {seconds:.0f} s"
