"""A metrics file is the same, incomplete or in conflict, within the tolerances of the contract."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.data.row_metrics import TOKENS, compare_metrics, differences

METRICS = {"name": "train", "Number of examples": 5, "Number of turns": {"Average": 2.5, "Max": 3.0}, "answer": [1, 2]}


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (5, 5, True),
        (5, 6, False),
        (100.0, 100.005, True),
        (100.0, 100.006, False),
        (0.5, 0.5005, True),
        (0.5, 0.5006, False),
        (1.0, 1, True),
        (True, 1, False),
        (None, 0, False),
        ("a", "a", True),
        ("a", "b", False),
        ([1, 2, 2], [2, 1, 2], True),
        ([1, 2], [1, 2, 2], False),
        ([{"a": 1}, {"b": 2}], [{"b": 2}, {"a": 1}], True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": {"b": 1.0}}, {"a": {"b": 2.0}}, False),
    ],
)
def test_values_are_compared_as_the_contract_says(old, new, same):
    """Files of other tools differ in the last digit, which is no conflict."""
    assert (not list(differences({"x": old}, {"x": new}))) == same


def test_every_difference_is_reported_with_both_values():
    """Both values together show whether the data or the file is wrong."""
    result = list(differences(METRICS, {**METRICS, "Number of examples": 6, "Number of turns": {"Average": 2.5}}))

    assert result == ["Number of examples: was 5, is 6", "Number of turns: Max: was 3.0, is missing"]


def test_a_file_is_new_the_same_completed_or_in_conflict(tmp_path):
    """Only a missing or incomplete file may be written without a flag."""
    path = tmp_path / "train_metrics.json"

    assert compare_metrics(path, METRICS)[0] == "new"
    path.write_text(json.dumps(METRICS))
    assert compare_metrics(path, METRICS)[0] == "same"
    assert compare_metrics(path, {**METRICS, "more": 1})[0] == "completed"
    state, differing, _ = compare_metrics(path, {**METRICS, "name": "other"})
    assert (state, differing) == ("conflict", ['name: was "train", is "other"'])


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_file_that_holds_no_metrics_is_a_conflict(tmp_path, text):
    """A file of another kind must not be replaced silently."""
    path = tmp_path / "train_metrics.json"
    path.write_text(text)

    assert compare_metrics(path, METRICS)[0] == "conflict"


def test_token_counts_of_another_machine_are_kept(tmp_path):
    """Without the tokenizer they cannot be counted, and they must not be lost."""
    path = tmp_path / "train_metrics.json"
    path.write_text(json.dumps({**METRICS, TOKENS: {"Average": 7.0}}))

    state, _, content = compare_metrics(path, METRICS)

    assert state == "same"
    assert content[TOKENS] == {"Average": 7.0}


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_value_agrees_with_itself(value):
    """A second run must never be in conflict with the first."""
    written = json.loads(json.dumps({"x": value}))

    assert not list(differences(written, {"x": value}))
