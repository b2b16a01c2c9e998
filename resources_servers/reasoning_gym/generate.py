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
"""The datasets of a row when none is named: short questions, one answer, scorers that pay for nothing else."""
ASK = "Give the final answer between <answer> and </answer>."


def row(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of the package as a row; what JSON cannot say is written as text."""
    plain: dict[str, Any] = json.loads(json.dumps(entry, default=_plain))
    question = plain["question"]
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"{question}\n\n{ASK}"}]},
        "question": question,
        "answer": plain["answer"],
        "metadata": plain["metadata"],
    }


def _plain(value: Any) -> Any:
    """Numbers of numpy as numbers, the rest as text."""
    return value.item() if hasattr(value, "item") else str(value)


def rows(count: int, *, seed: int, datasets: tuple[str, ...] = MIXED) -> list[dict[str, Any]]:
    """`count` rows, the datasets in turn."""
    package = importlib.import_module("reasoning_gym")
    each = -(-count // len(datasets))
    made = {name: package.create_dataset(name, seed=seed, size=each) for name in datasets}
    return [row(made[name][number]) for number in range(each) for name in datasets][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dataset", action="append", choices=sorted(DATASETS), metavar="NAME", help="repeatable")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    made = rows(args.rows, seed=args.seed, datasets=tuple(args.dataset or MIXED))
    args.out.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")


if __name__ == "__main__":
    main()
