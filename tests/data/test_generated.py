"""A folder's rows can be made again, and are the same each time."""

import json
import sys
from pathlib import Path

import pytest

from nemo_gym.data.generated import write_generated


def rows(count: int, *, seed: int) -> list[dict[str, int]]:
    return [{"number": seed + place} for place in range(count)]


def test_rows_are_written_as_the_command_line_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["generate.py", str(target), "--rows", "2", "--seed", "7"])

    write_generated(rows, "Makes rows.")

    assert [json.loads(line) for line in target.read_text().splitlines()] == [{"number": 7}, {"number": 8}]
