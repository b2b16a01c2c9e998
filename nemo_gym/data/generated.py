"""The command of a folder's `generate.py`: so many rows, from a seed, into a file."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEFAULT_ROWS = 40


def write_generated(rows: Callable[..., Sequence[dict[str, Any]]], description: str | None) -> None:
    """Read the command line and write what `rows(count, seed=seed)` makes, one JSON object per line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.write_text("".join(json.dumps(row) + "\n" for row in rows(args.rows, seed=args.seed)), encoding="utf-8")
