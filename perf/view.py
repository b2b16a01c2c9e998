"""Measure the viewer on a run of a million small rollouts: indexing, opening, querying."""

import json
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

MANY = 1_000_000
QUERIES: dict[str, dict[str, Any]] = {
    "first page": {},
    "by reward": {"filter_text": "reward < 0.5"},
    "by three things": {"filter_text": 'reward < 0.5 and turns >= 1 and outcome == "scored"'},
    "by words": {"words": "kappa 77"},
    "sorted by reward": {"sort": "reward", "down": True},
    "last page": {"start": MANY - 100},
    "far down, sorted by tokens": {"sort": "tokens", "start": MANY // 2},
}
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda")


def write_rollouts(path: Path, count: int) -> None:
    chance = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            text = f"{chance.choice(WORDS)} {chance.choice(WORDS)} {number}"
            record = {
                "responses_create_params": {"input": [{"role": "user", "content": f"question {number // 4}"}]},
                "response": {
                    "output": [
                        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
                    ],
                    "usage": {"input_tokens": 100, "output_tokens": number % 50},
                },
                "reward": float(chance.random() < 0.5),
                "expected_answer": str(number % 7),
                "extracted_answer": str(number % 5),
                "_ng_task_index": number // 4,
                "_ng_rollout_index": number % 4,
            }
            file.write(json.dumps(record) + "\n")


def measure(count: int = MANY) -> dict[str, Any]:
    """Return seconds to index the run, to open it again and of the slowest query, and the peak memory."""
    from nemo_gym.rollouts.run_files import RunFiles
    from nemo_gym.view.database import RunDatabase
    from nemo_gym.view.summary import summarize

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rollouts(folder / "rollouts.jsonl", count)
        run = RunFiles(folder / "rollouts.jsonl")
        begin = time.process_time()
        RunDatabase(run, folder / "index.sqlite").build()
        index_seconds = time.process_time() - begin
        begin = time.process_time()
        index = RunDatabase(run, folder / "index.sqlite")
        index.grow()
        index.page()
        open_seconds = time.process_time() - begin
        query_seconds = {}
        for what, query in QUERIES.items():
            start = min(query.get("start", 0), max(count - 100, 0))
            query_seconds[what] = min(_seconds(index, {**query, "start": start}) for _ in range(3))
        begin = time.process_time()
        summarize(index)
        return {
            "rollouts": count,
            "read_s": index_seconds,
            "open_s": open_seconds,
            "queries_s": query_seconds,
            "slowest_s": max(query_seconds.values()),
            "summary_s": time.process_time() - begin,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        }


def _seconds(index: Any, query: dict[str, Any]) -> float:
    begin = time.process_time()
    index.page(**query)
    return time.process_time() - begin


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
