"""Tokens of a rollout."""

import pytest

from nemo_gym.rollouts.usage import total_tokens


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"total_tokens": 12, "input_tokens": 1}, 12),
        ({"input_tokens": 3, "output_tokens": 4}, 7),
        ({"total_tokens": -5}, 0),
        ({"total_tokens": "many"}, 0),
        ({}, 0),
        (None, 0),
        ([1], 0),
        ({"total_tokens": 10**30}, 2**63 - 1),
    ],
)
def test_tokens_are_what_the_response_counts_and_nonsense_is_nothing(usage, tokens):
    assert total_tokens({"response": {"usage": usage}}) == tokens


@pytest.mark.parametrize("record", [{}, {"response": None}, {"response": []}])
def test_a_record_without_a_response_used_nothing(record):
    assert total_tokens(record) == 0
