"""One row ends or blocks a server in a separate process: the other rollouts of that server lose no attempt."""

import json
import random
from pathlib import Path

from chaos.evaluation import BrokenPromise, read_records, rollout_id
from chaos.faulty_server import BLOCKS, CRASHES, FAULTY, GOOD, TWIN, FaultyEvaluation

SHORT_RUNS = 4
FAULTS = (*CRASHES, *(fault for fault in BLOCKS if fault != "thread"))
"""Without the fault of a thread: whose request started it is unknown when the process ends."""
BLOCKS_OF_SERVERS = (
    *(f"{name}.resources_servers.faulty" for name in (FAULTY, TWIN)),
    f"{GOOD}.resources_servers.arithmetic",
    *(f"{name}_agent.responses_api_agents.simple_agent" for name in (FAULTY, GOOD, TWIN)),
    "policy_model.responses_api_models.scripted_model",
)
"""All servers run in separate processes: in a cell, the short limit for a blocked process would be too short."""


def run_seed(folder: Path, seed: int) -> str:
    """Let all verifications of the server wait while that of one row causes the fault that the seed determines."""
    chance = random.Random(seed)
    fault, task = FAULTS[seed % len(FAULTS)], chance.randrange(6)
    job = FaultyEvaluation(
        folder, {task: fault}, tasks=6,
        overrides=[
            *(f"+{block}.hosting=process" for block in BLOCKS_OF_SERVERS), "+blocked_cell_timeout_seconds=0.3",
            "--concurrency=36", "--max-attempts=2",
        ],
    )  # fmt: skip
    path = folder / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[::3]:
        row["pause"] = round(chance.uniform(0.1, 0.3), 3) if row.get("fault") else 0.6
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, _ = job.run()
    if status != 1:
        raise BrokenPromise(f"the run with {fault} ended with status {status}:\n{job.log_tail()}")
    job.check_results()
    culprits = [f"POST /verify of rollout {task * 3}-{repeat} was running" for repeat in range(job.repeats)]
    for record in read_records(job.failures):
        if rollout_id(record) not in job.faulty_ids():
            raise BrokenPromise(f"an innocent rollout counts a failed attempt: {record}")
        if not any(culprit in record["_ng_failure"]["message"] for culprit in culprits):
            raise BrokenPromise(f"a failure does not name the request that caused it: {record['_ng_failure']}")
    return f"{fault} in row {task}"
