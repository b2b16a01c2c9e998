"""Kill a server that keeps the state of its sessions in memory, in the middle of a run.

The model of this run is always right, so the only right reward is 1.0. A rollout whose session was lost must fail as
`server_died` and be run again; going on with an empty state would store a false zero.
"""

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import yaml

from chaos.evaluation import (
    AGENT,
    ROOT,
    BrokenPromise,
    Evaluation,
    read_records,
    send_signal,
    server_pids,
    wait_until,
)

COMPONENTS = ROOT / "chaos" / "components"
HOSTINGS = (("process", "cell"), ("cell", "cell"), ("cell", "process"))
"""Hosting of the ledger and of the agent; if they share no process, the agent survives the ledger."""
DEPOSITS = 4
MAX_DELAY_SECONDS = 0.2
MAX_KILL_SECONDS = 3.0
"""An undisturbed run takes about four seconds."""


def answer(scene: Any) -> dict[str, Any]:
    """Return the next turn of the scripted model: deposit 1, 2, 3 and 4, then end the episode."""
    delay = MAX_DELAY_SECONDS * scene.chance.random()
    if scene.number < DEPOSITS:
        call = {"name": "deposit", "arguments": {"amount": scene.number + 1}}
        return {"tool_calls": [call], "delay_seconds": delay}
    return {"text": "Done.", "delay_seconds": delay}


def ledger_evaluation(folder: Path, hosting: str, agent_hosting: str) -> Evaluation:
    """Return an evaluation of the ledger environment whose resources server and agent have these hostings."""
    script = {"entrypoint": "app.py", "function": f"{__name__}:answer"}
    job = Evaluation(
        folder,
        model={"responses_api_models": {"scripted_model": script}},
        overrides=["--search-dir", str(COMPONENTS), "+max_rollout_attempts=20"],
    )
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as rows:
        for number in range(job.tasks):
            params = {"input": [{"role": "user", "content": f"Make the deposits of ledger {number}."}]}
            balance = number + sum(range(1, DEPOSITS + 1))
            rows.write(
                json.dumps({"responses_create_params": params, "opening": number, "expected_balance": balance}) + "\n"
            )
    config = yaml.safe_load((folder / "config.yaml").read_text())
    del config["arithmetic"]
    ledger = {"entrypoint": "app.py", "domain": "agent", "hosting": hosting}
    config["ledger"] = {"resources_servers": {"ledger": ledger}}
    agent = config[AGENT]["responses_api_agents"]["simple_agent"]
    agent |= {"resources_server": {"type": "resources_servers", "name": "ledger"}, "hosting": agent_hosting}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return job


def run_seed(folder: Path, seed: int) -> str:
    """Kill the process of the ledger at the moment that the seed determines, then resume until all are scored."""
    chance = random.Random(seed)
    hosting, agent_hosting = HOSTINGS[seed % len(HOSTINGS)]
    job = ledger_evaluation(folder, hosting, agent_hosting)
    with job.running() as process:
        pid = server_pids(process, job)["ledger"]
        wait_until(time.monotonic() + chance.uniform(0.1, MAX_KILL_SECONDS), process)
        send_signal(pid, signal.SIGKILL)
        status, _ = job.finish(process)
    if status not in (0, 1):
        raise BrokenPromise(f"the run ended with status {status}:\n{job.log_tail()}")
    check_rewards(job)
    failures = read_records(job.failures)
    kinds = {record["_ng_failure_class"] for record in failures}
    if kinds - {"server_died", "model_unreachable"}:  # the cell also hosts the model
        raise BrokenPromise(f"the failures are of kind {sorted(kinds)} instead of server_died")
    if status:
        job.resume_until_scored()
        check_rewards(job)
    if set(job.rewards()) != job.rollout_ids():
        raise BrokenPromise("rollouts are missing after the resume")
    place = f"{hosting} of the ledger (agent: {agent_hosting})"
    return f"killed the {place}; {len(failures)} attempts failed and were run again"


def check_rewards(job: Evaluation) -> None:
    """Fail if a stored reward is not 1.0, the only right one."""
    wrong = {rollout: reward for rollout, reward in job.rewards().items() if reward != 1.0}
    if wrong:
        raise BrokenPromise(f"{len(wrong)} rollouts went on with an empty state: {sorted(wrong.items())[:6]}")
