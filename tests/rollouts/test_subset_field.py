"""Parts of the data by a field of the records."""

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.aggregate import MAX_SUBSETS, SubsetField


@pytest.mark.parametrize(
    ("record", "subset"),
    [
        ({"level": "easy"}, "easy"),
        ({"level": 0}, "0"),
        ({"level": False}, "False"),
        ({"level": None}, None),
        ({"level": ""}, None),
        ({"level": {"deep": 1}}, None),
        ({}, None),
    ],
)
def test_a_value_is_a_part_and_nothing_is_none(record, subset):
    """Zero and False are values; an object is not."""
    assert SubsetField("level")(record) == subset


def test_a_field_may_lie_deeper():
    """Most environments keep such things in `verifier_metadata`."""
    by = SubsetField("verifier_metadata.level")

    assert by({"verifier_metadata": {"level": "easy"}}) == "easy"
    assert by({"verifier_metadata": "text"}) is None


def test_a_field_that_no_record_has_is_refused_with_the_nearest_that_exists():
    """A misspelt field must not give an empty table."""
    by = SubsetField("levle")
    by({"level": "easy", "reward": 1.0})

    with pytest.raises(ConfigError, match="no rollout has a value in 'levle'") as caught:
        by.check("a.jsonl")
    assert caught.value.fix == "level"


def test_a_field_with_a_value_for_every_task_is_refused():
    """Ten thousand parts are no parts, and would fill the memory."""
    by = SubsetField("id")

    with pytest.raises(ConfigError, match="more than"):
        for number in range(MAX_SUBSETS + 1):
            by({"id": number})
