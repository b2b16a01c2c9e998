"""The command line of a folder's generator."""

import json
import sys
from pathlib import Path

import pytest

from nemo_gym.data.generator_command import run_generator


def rows(count: int, *, seed: int) -> list[dict[str, int]]:
    return [{"number": seed + number} for number in range(count)]


def test_rows_are_written_as_the_command_line_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All generators share one command line, and the seed makes their rows reproducible."""
    target = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["generate.py", str(target), "--rows", "2", "--seed", "7"])

    run_generator(rows, "Makes rows.")

    assert [json.loads(line) for line in target.read_text().splitlines()] == [{"number": 7}, {"number": 8}]
