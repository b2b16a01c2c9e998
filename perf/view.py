"""The viewer on a large run: how long it reads it once, and how fast it answers afterwards.

The rows are small and many: what is asked of the viewer is a million of them.
"""

import json
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

MANY = 1_000_000
QUESTIONS: dict[str, dict[str, Any]] = {
    "first page": {},
    "by reward": {"where": "reward < 0.5"},
    "by three things": {"where": 'reward < 0.5 and turns >= 1 and outcome == "scored"'},
    "by words": {"words": "kappa 77"},
    "sorted by reward": {"sort": "reward", "down": True},
    "last page": {"start": MANY - 100},
}
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda")


def write_rollouts(path: Path, count: int) -> None:
    chance = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            said = f"{chance.choice(WORDS)} {chance.choice(WORDS)} {number}"
            record = {
                "responses_create_params": {"input": [{"role": "user", "content": f"question {number // 4}"}]},
                "response": {
                    "output": [
                        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}
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
    """Seconds to read the run once, to open it again, and for the slowest question; and the memory all of it took."""
    from nemo_gym.view.index import RunIndex
    from nemo_gym.view.runs import RunFiles
    from nemo_gym.view.summary import summary

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rollouts(folder / "rollouts.jsonl", count)
        run = RunFiles(folder / "rollouts.jsonl")
        begin = time.process_time()
        RunIndex(run, folder / "index.sqlite").build()
        built = time.process_time() - begin
        begin = time.process_time()
        index = RunIndex(run, folder / "index.sqlite")
        index.grow()
        index.page()
        opened = time.process_time() - begin
        asked = {}
        for what, question in QUESTIONS.items():
            start = min(question.get("start", 0), max(count - 100, 0))
            asked[what] = min(_seconds(index, {**question, "start": start}) for _ in range(3))
        begin = time.process_time()
        summary(index)
        return {
            "rollouts": count,
            "read_s": built,
            "open_s": opened,
            "questions_s": asked,
            "slowest_s": max(asked.values()),
            "summary_s": time.process_time() - begin,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        }


def _seconds(index: Any, question: dict[str, Any]) -> float:
    begin = time.process_time()
    index.page(**question)
    return time.process_time() - begin


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
