"""Token counts and their sums."""

import pytest

from nemo_gym.openai_utils import (
    NeMoGymResponseInputTokensDetails,
    NeMoGymResponseOutputTokensDetails,
    NeMoGymResponseUsage,
    accumulate_response_usage,
)


def usage(count: int, cached: int | None = 0, reasoning: int | None = 0) -> NeMoGymResponseUsage:
    return NeMoGymResponseUsage(
        input_tokens=count,
        input_tokens_details=NeMoGymResponseInputTokensDetails(cached_tokens=cached),
        output_tokens=count,
        output_tokens_details=NeMoGymResponseOutputTokensDetails(reasoning_tokens=reasoning),
        total_tokens=2 * count,
    )


def test_all_counts_are_added():
    """The usage of an episode is the sum over its turns."""
    assert NeMoGymResponseUsage.sum_from_list([usage(1, 2, 3), usage(10, 20, 30)]) == usage(11, 22, 33)


@pytest.mark.parametrize("position", [0, 1])
def test_a_detail_that_one_turn_does_not_know_is_unknown_in_the_sum(position):
    """Counting unknown as zero would report fewer reasoning tokens than were paid for."""
    turns = [usage(1, 2, 3), usage(1, 2, 3)]
    turns[position] = usage(1, None, None)

    total = NeMoGymResponseUsage.sum_from_list(turns)

    assert total == usage(2, None, None)


def test_two_usages_of_which_any_may_be_missing():
    """A model server that reports no usage must not stop the episode."""
    assert accumulate_response_usage(None, None) is None
    assert accumulate_response_usage(usage(1), None) == usage(1)
    assert accumulate_response_usage(None, usage(1, None)) == usage(1, None)
    assert accumulate_response_usage(usage(1), usage(2)) == usage(3)


def test_the_sum_is_a_new_object():
    """The first turn's usage is shown beside the total; adding must not change it."""
    first = usage(1)

    total = accumulate_response_usage(first, usage(2))

    assert total is not first
    assert first == usage(1)


def test_the_sum_of_nothing_is_zero_and_missing_details_are_unknown():
    """Servers leave the details out or send null for them."""
    assert NeMoGymResponseUsage.sum_from_list([]).total_tokens == 0
    bare = NeMoGymResponseUsage.model_validate(
        {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "output_tokens_details": None}
    )
    assert NeMoGymResponseUsage.sum_from_list([bare, usage(1)]) == usage(2, None, None)
