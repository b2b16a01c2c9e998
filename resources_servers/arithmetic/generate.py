"""Write rows of sums: `python generate.py OUT --rows 40 --digits 1 --seed 0`."""

import argparse
import json
import random
from pathlib import Path
from typing import Any

WORKED_SUMS = [(3, 4), (9, 2), (5, 5), (1, 8)]


def question(a: int, b: int) -> dict[str, str]:
    return {"role": "user", "content": f"What is {a} + {b}?"}


def row(a: int, b: int) -> dict[str, Any]:
    """Build one task: the worked sums as earlier turns, then the sum to answer."""
    examples = [
        message
        for x, y in WORKED_SUMS
        for message in (question(x, y), {"role": "assistant", "content": f"{x} + {y} = {x + y}"})
    ]
    params = {"input": [*examples, question(a, b)], "max_output_tokens": 16}
    return {"responses_create_params": params, "expected_answer": a + b}


def rows(count: int, *, digits: int = 1, seed: int) -> list[dict[str, Any]]:
    """Return `count` different sums of `digits`-digit numbers, without the worked ones.

    No operand is zero: a reply that only repeats the question must never end in the right number.
    """
    low, high = 10 ** (digits - 1), 10**digits - 1
    pairs = [(a, b) for a in range(low, high + 1) for b in range(low, high + 1) if (a, b) not in WORKED_SUMS]
    if count > len(pairs):
        raise SystemExit(f"there are only {len(pairs)} different sums of {digits}-digit numbers; asked for {count}")
    return [row(a, b) for a, b in random.Random(seed).sample(pairs, count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="JSONL file to write")
    parser.add_argument("--rows", type=int, default=40, help="number of rows (default: 40)")
    parser.add_argument("--digits", type=int, default=1, choices=(1, 2), help="digits of each number (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (default: 0)")
    args = parser.parse_args()
    lines = [json.dumps(task) + "\n" for task in rows(args.rows, digits=args.digits, seed=args.seed)]
    args.out.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
