"""Measure exporting rollouts as training data, as a multiple of parsing and writing the same lines."""

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.data.export import ExportDatasetConfig, export

ROLLOUTS = 20_000
REPEATS = 4
MAX_RATIO_BEST = 2.5
"""Times the floor for the best rollout of each task."""
MAX_RATIO_ALL = 8.0
"""Times the floor when every rollout becomes an example."""
MAX_RATIO_PARQUET = 10.0
"""Times the floor when every rollout becomes an example in a Parquet file."""


def write_rollouts(path: Path, count: int) -> None:
    """Write rollouts with two tool calls each, about 2.7 kB long."""
    rng = random.Random(7)
    words = [f"word{number}" for number in range(3000)]

    def text(length: int) -> str:
        return " ".join(rng.choices(words, k=length))

    with path.open("wb") as lines:
        for number in range(count):
            output: list[dict[str, Any]] = []
            for call in ("c1", "c2"):
                arguments = orjson.dumps({"q": text(5)}).decode()
                output += [
                    {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": text(50)}]},
                    {"type": "function_call", "call_id": call, "name": "find", "arguments": arguments},
                    {"type": "function_call_output", "call_id": call, "output": text(40)},
                ]
            content = [{"type": "output_text", "text": text(50), "annotations": []}]
            output.append({"type": "message", "id": "m", "role": "assistant", "content": content})
            tool = {"type": "function", "name": "find", "parameters": {"type": "object"}, "strict": False}
            record = {
                "responses_create_params": {"input": [{"role": "user", "content": text(40)}], "tools": [tool]},
                "response": {"id": "r", "model": "m", "output": output},
                "reward": (number % REPEATS) / REPEATS,
                "_ng_task_index": number // REPEATS,
                "_ng_rollout_index": number % REPEATS,
                "agent_ref": {"name": "agent"},
            }
            lines.write(orjson.dumps(record) + b"\n")


def floor(source: Path, target: Path) -> None:
    """Parse and write every line."""
    with source.open("rb") as lines, target.open("wb") as copy:
        copy.writelines(orjson.dumps(orjson.loads(line)) + b"\n" for line in lines)


def measure(count: int = ROLLOUTS, runs: int = 3) -> dict[str, float]:
    """Return the CPU seconds of the floor and each export as a multiple of it; best of several runs."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "rollouts.jsonl", Path(folder) / "out"
        write_rollouts(source, count)
        base = _best(runs, lambda: floor(source, target))
        figures = {"floor_s": base, "megabytes": source.stat().st_size / 1e6}
        for name, ending, more in (
            ("best", ".jsonl", {}),
            ("all", ".jsonl", {"select": "above", "min_reward": 0.0}),
            ("all_parquet", ".parquet", {"select": "above", "min_reward": 0.0}),
        ):
            settings = {
                "rollouts_jsonl_fpath": str(source),
                "output_fpath": f"{target}{ending}",
                "format": "sft",
                **more,
            }
            config = ExportDatasetConfig.model_validate(settings)
            figures[name] = _best(runs, lambda config=config: export(config)) / base  # type: ignore[misc]
    return figures


def _best(runs: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(runs):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


if __name__ == "__main__":
    print(measure())
