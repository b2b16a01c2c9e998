"""Rows of datasets know the agent they are for."""

import json

import pytest

from nemo_gym.data.agents import AgentDataset, stamped_lines
from nemo_gym.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 0}\n{"id": 1, "agent_ref": {"name": "own"}}\n{"id": 2}\n')
    return path


def test_rows_get_the_agent_of_their_dataset_unless_they_name_one(path):
    """A row that knows its agent keeps it."""
    rows = [json.loads(line) for line in stamped_lines([AgentDataset("a", "train", path, num_repeats=2)])]

    assert [(row["id"], row["agent_ref"]["name"]) for row in rows] == [
        (0, "a"),
        (0, "a"),
        (1, "own"),
        (1, "own"),
        (2, "a"),
        (2, "a"),
    ]


def test_a_slice_is_a_slice(path):
    """The configuration says which rows are meant."""
    lines = stamped_lines([AgentDataset("a", "train", path, start_idx=1, end_idx=2)])

    assert [json.loads(line)["id"] for line in lines] == [1]


@pytest.mark.parametrize(("line", "told"), [("{", "not JSON"), ("[]", "not a JSON object")])
def test_a_line_that_is_no_row_is_named(path, line, told):
    """By file and line."""
    path.write_text(f'{{"id": 0}}\n{line}\n')

    with pytest.raises(ConfigError, match=rf"rows\.jsonl:2: {told}"):
        list(stamped_lines([AgentDataset("a", "train", path)]))
