"""The endpoint refuses every call from a random moment on: the run must stop early and lose no row.

The refusal is that of an expired key, an exhausted quota, a model that was removed, a redirect, or, as some providers
answer to a wrong key, that of an invalid request. Resumed with the endpoint unchanged, the run is refused each time;
resumed with a healthy endpoint, every rollout is scored.
"""

import json
import random
from pathlib import Path

from chaos.endpoint import FaultyEndpoint, serving
from chaos.evaluation import BrokenPromise, Evaluation

CONCURRENCY = 6
MAX_REFUSED = 2 * CONCURRENCY + 5
"""The first few, one per worker, one more per worker for rows sent before the last accepted one, and one sent again."""
REFUSED_RESUMES = (0, 0, 1, 4)
REFUSALS = (
    (401, {"message": "Incorrect API key provided", "code": "invalid_api_key"}),
    (402, {"message": "Payment required"}),
    (403, {"message": "The key was revoked"}),
    (404, {"message": "The model does not exist", "code": "model_not_found"}),
    (429, {"message": "You exceeded your current quota", "type": "insufficient_quota"}),
    (400, {"message": "API key not valid", "status": "INVALID_ARGUMENT"}),
    (422, {"message": "Unprocessable"}),
    (302, {"message": "Log in"}),
    (409, {"message": "The deployment is being deleted"}),
    (200, {"message": "The key is not valid", "code": "invalid_api_key"}),
)


def run_seed(folder: Path, seed: int) -> str:
    """Refuse calls from the moment that the seed determines, check the early stop, then resume until all are scored."""
    chance = random.Random(seed)
    status, error = REFUSALS[seed % len(REFUSALS)]
    endpoint = FaultyEndpoint(seed, 0.0)
    endpoint.refusal = status, json.dumps({"error": error}).encode()
    with serving(endpoint) as url:
        model = {"entrypoint": "app.py", "openai_base_url": url, "openai_api_key": "x", "openai_model": "chaos"}
        job = Evaluation(folder, model={"responses_api_models": {"openai_model": model}}, cells=1)
        endpoint.accepted_calls = chance.randrange(len(job.rollout_ids()) - CONCURRENCY)
        run_refused(job, endpoint)
        accepted = endpoint.accepted_calls
        for _ in range(chance.choice(REFUSED_RESUMES)):
            run_refused(job, endpoint, "--resume")
        endpoint.refusal = None
        job.resume_until_scored(max_resumes=1)
    if set(job.rewards()) != job.rollout_ids():
        raise BrokenPromise("rollouts are missing after a resume with an endpoint that accepts requests")
    return f"status {status} after {accepted} of {len(job.rollout_ids())} rollouts; all were scored after a resume"


def run_refused(job: Evaluation, endpoint: FaultyEndpoint, *extra: str) -> None:
    """Run until the endpoint refuses the run; fail unless the run stops early, says so and scores what was accepted."""
    before = endpoint.calls["refused"]
    status, report = job.run(*extra)
    if status != 3 or "run the same command with --resume" not in report.get("error", ""):
        raise BrokenPromise(f"the refused run ended with status {status}:\n{job.log_tail()}")
    # An answer that is no reply may be an outage, so that each rollout is tried twice.
    tries = 2 if endpoint.refusal and endpoint.refusal[0] == 200 else 1
    if endpoint.calls["refused"] - before > tries * MAX_REFUSED:
        raise BrokenPromise(f"the run sent {endpoint.calls['refused'] - before} calls to an endpoint that refuses all")
    rewards = job.rewards()
    if len(rewards) != endpoint.accepted_calls:
        raise BrokenPromise(f"{len(rewards)} rollouts are stored, but {endpoint.accepted_calls} were answered")
