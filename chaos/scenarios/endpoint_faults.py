"""A tenth of the model calls fail: the counts must add up, and no damaged answer may be scored."""

from pathlib import Path

from chaos.endpoint import FaultyEndpoint, serving
from chaos.evaluation import BrokenPromise, Evaluation, RolloutId, read_records, rollout_id

SHORT_RUNS = 1
FAULT_SHARE = 0.1


def run_seed(folder: Path, seed: int) -> str:
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
