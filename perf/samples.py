"""Measure building samples from the token fields of rollouts in memory."""

import random
import time
from typing import Any

from nemo_gym.training import rollout_of

ROLLOUTS = 10_000
TURNS, PROMPT_TOKENS, GENERATED_TOKENS = 8, 100, 150
"""Of one rollout: model calls, and the new tokens that each of them reads and generates; 2,000 tokens in all."""
MAX_SECONDS = 3.0
"""For 10,000 rollouts of 2,000 tokens."""


def make_record(rng: random.Random, task: int) -> dict[str, Any]:
    """Return the record of a rollout whose model calls continue each other."""
    items: list[dict[str, Any]] = []
    prompt: list[int] = []
    for _ in range(TURNS):
        prompt = [*prompt, *(rng.randrange(150_000) for _ in range(PROMPT_TOKENS))]
        generation = [rng.randrange(150_000) for _ in range(GENERATED_TOKENS)]
        tokens = {
            "prompt_token_ids": prompt,
            "generation_token_ids": generation,
            "generation_log_probs": [-rng.random() for _ in generation],
        }
        items += [{"type": "function_call", **tokens}, {"type": "function_call_output"}]
        prompt = [*prompt, *generation]
    return {"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 1.0, "response": {"output": items}}


def measure(count: int = ROLLOUTS, runs: int = 3) -> dict[str, float]:
    """Return the CPU seconds for 10,000 rollouts, scaled from `count`; the best of several runs."""
    rng = random.Random(7)
    records = [make_record(rng, task) for task in range(min(count, 500))]
    times = []
    for _ in range(runs):
        began = time.process_time()
        for number in range(count):
            rollout = rollout_of(records[number % len(records)])
            assert len(rollout.samples[0].token_ids) == TURNS * (PROMPT_TOKENS + GENERATED_TOKENS)
        times.append(time.process_time() - began)
    return {"seconds": min(times) * ROLLOUTS / count}


if __name__ == "__main__":
    print(measure())
