"""Files of other tools: NaN and Infinity are no JSON, but Python writes them."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.journal import parse_lenient, parse_line, read_rows

NUMBERS = st.floats() | st.integers(-5, 5)
VALUES = st.recursive(NUMBERS | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=6)


def test_a_reward_that_is_no_number_makes_the_row_a_failure() -> None:
    """It never was a score, and must not become one, or a zero, by being read."""
    row = parse_lenient(b'{"_ng_task_index": 1, "reward": NaN, "x": 2}')

    assert row is not None
    assert "reward" not in row
    assert row["_ng_failure_class"] == "invalid_reward"
    assert "nan" in row["_ng_failure"]["message"]


def test_other_numbers_that_are_none_become_null() -> None:
    """The rollout is scored; the figure that could not be computed is left out of its mean."""
    assert parse_lenient(b'{"reward": 1.0, "loss": -Infinity, "parts": [{"a": NaN}, 2]}') == {
        "reward": 1.0,
        "loss": None,
        "parts": [{"a": None}, 2],
    }


@pytest.mark.parametrize("line", [b'{"reward": nan}', b'{"reward": NaN', b"[NaN]", b"NaN", b'{"a": "NaN"', b"{}x"])
def test_what_python_cannot_read_either_is_no_row(line: bytes) -> None:
    """A torn line stays a torn line."""
    assert parse_line(line) is None


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(["reward", "a", "b"]), VALUES))
def test_every_row_that_python_writes_can_be_read(row: dict[str, object]) -> None:
    """Whatever is in it, what comes out can be written as JSON and has no reward that is not finite."""
    parsed = parse_line(json.dumps(row).encode())

    assert parsed is not None
    json.dumps(parsed, allow_nan=False)
    reward = row.get("reward")
    if isinstance(reward, float) and not math.isfinite(reward):
        assert parsed["_ng_failure_class"] == "invalid_reward"


def test_files_with_such_lines_are_read(tmp_path) -> None:
    """Profiles, resumed runs and the viewer read through here."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"reward": 1.0, "loss": NaN}\n{"reward": 0.5}\n')

    assert list(read_rows(path)) == [{"reward": 1.0, "loss": None}, {"reward": 0.5}]
