"""A tenth of the model calls go wrong: the run ends, its counts add up, and no failure has a reward."""

from pathlib import Path

from chaos.endpoint import Endpoint, running
from chaos.job import Broken, Job, Place, records

SHARE = 0.1


def disturbed(folder: Path, seed: int) -> str:
    """Run against a bad endpoint, check the books, then resume against a good one."""
    endpoint = Endpoint(seed, SHARE)
    with running(endpoint) as url:
        model = {"entrypoint": "app.py", "openai_base_url": url, "openai_api_key": "x", "openai_model": "chaos"}
        job = Job(
            folder,
            model={"responses_api_models": {"openai_model": model}},
            overrides=["+model_call_timeout_seconds=3", "+rollout_timeout_seconds=20"],
            tasks=50,
            repeats=4,
        )
        status, _ = job.run()
        if status not in (0, 1):
            raise Broken(f"the run ended with status {status}:\n{job.log_tail()}")
        rewards = job.rewards()
        failed = failed_places(job) - set(rewards)
        check_the_books(job, status, rewards, failed)
        wrong = sum(count for fault, count in endpoint.calls.items() if fault != "none")
        if not wrong:
            raise Broken("nothing went wrong at the endpoint, so nothing was shown")
        endpoint.share = 0.0
        job.resume_to_the_end()
    if set(job.rewards()) != job.places():
        raise Broken("after the endpoint was well again some rollouts are missing")
    return f"{wrong} of {endpoint.calls.total()} calls went wrong, {len(failed)} of {len(job.places())} rollouts failed"


def check_the_books(job: Job, status: int, rewards: dict[Place, float], failed: set[Place]) -> None:
    if set(rewards) | failed != job.places():
        raise Broken(f"{len(rewards)} scored and {len(failed)} failed are not all {len(job.places())} rollouts")
    if set(rewards.values()) - {1.0}:
        raise Broken(f"a spoiled answer was scored: {rewards}")
    if (status == 0) != (not failed):
        raise Broken(f"exit status {status} with {len(failed)} failed rollouts")


def failed_places(job: Job) -> set[Place]:
    return {(record["_ng_task_index"], record["_ng_rollout_index"]) for record in records(job.failures)}
