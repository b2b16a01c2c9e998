"""Write rows of any dataset of reasoning-gym: `python generate.py OUT --dataset sudoku --rows 40 --seed 0`."""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from nemo_gym.data.generator_command import DEFAULT_ROWS
from resources_servers.reasoning_gym.names import DATASETS

MIXED = (
    "chain_sum",
    "caesar_cipher",
    "leg_counting",
    "base_conversion",
    "family_relationships",
    "products",
    "calendar_arithmetic",
    "number_filtering",
    "basic_arithmetic",
    "lcm",
)
"""The default datasets: short questions with one answer, and scorers that accept nothing else."""
ASK = "Give the final answer between <answer> and </answer>."


def row(entry: dict[str, Any]) -> dict[str, Any]:
    """Turn an entry of the package into a row; values that JSON does not have become text."""
    fields: dict[str, Any] = json.loads(json.dumps(entry, default=_as_json))
    question = fields["question"]
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"{question}\n\n{ASK}"}]},
        "question": question,
        "answer": fields["answer"],
        "metadata": fields["metadata"],
    }


def _as_json(value: Any) -> Any:
    """Return a number of numpy as a number, any other value as text."""
    return value.item() if hasattr(value, "item") else str(value)


def rows(count: int, *, seed: int, datasets: tuple[str, ...] = MIXED) -> list[dict[str, Any]]:
    """Return `count` rows, the datasets in turn."""
    package = importlib.import_module("reasoning_gym")
    each = -(-count // len(datasets))
    entries = {name: package.create_dataset(name, seed=seed, size=each) for name in datasets}
    return [row(entries[name][number]) for number in range(each) for name in datasets][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dataset", action="append", choices=sorted(DATASETS), metavar="NAME", help="repeatable")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tasks = rows(args.rows, seed=args.seed, datasets=tuple(args.dataset or MIXED))
    args.out.write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")


if __name__ == "__main__":
    main()
