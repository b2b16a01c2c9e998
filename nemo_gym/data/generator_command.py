"""The command line of a folder's `generate.py`: write rows from a seed to a file."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEFAULT_ROWS = 40


def run_generator(rows: Callable[..., Sequence[dict[str, Any]]], description: str | None) -> None:
    """Parse the command line and write the result of `rows(count, seed=seed)`, one JSON object per line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="number of rows")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random generator")
    args = parser.parse_args()
    args.out.write_text("".join(json.dumps(row) + "\n" for row in rows(args.rows, seed=args.seed)), encoding="utf-8")
