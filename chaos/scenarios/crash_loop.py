"""A server crashes at every request until it is given up: the run ends soon, with status 3, and can be continued."""

import random
import time
from pathlib import Path

from chaos.evaluation import BrokenPromise
from chaos.faulty_server import CRASHES, FaultyEvaluation

MAX_SECONDS = 60.0


def run_seed(folder: Path, seed: int) -> str:
    """Crash one server, in a cell or in a separate process, at every verification; then run without the faults."""
    chance = random.Random(seed)
    fault, hosting = CRASHES[seed % len(CRASHES)], chance.choice(("cell", "process"))
    job = FaultyEvaluation(
        folder, dict.fromkeys(range(10), fault), tasks=10,
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
    return f"{fault} in a {hosting}, {seconds:.0f} s"
