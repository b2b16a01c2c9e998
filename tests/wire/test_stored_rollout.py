"""The fields of a stored record, read in one place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.wire.stored_rollout import RolloutKey, StoredRollout

FIELDS = (
    "agent_ref",
    "reward",
    "response",
    "responses_create_params",
    "ng_model_call_capture",
    "_ng_failure",
    "_ng_phases",
    "_ng_seconds",
)


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
    """The token budget must not fail on a strange record."""
    assert StoredRollout({"response": {"usage": usage}}).total_tokens == tokens


@pytest.mark.parametrize("record", [{}, {"response": None}, {"response": []}])
def test_a_record_without_a_response_used_nothing(record):
    """Failed rollouts often have no response."""
    assert StoredRollout(record).total_tokens == 0


def test_one_view_reads_every_field_of_a_record():
    """Scores, exports and the viewer must agree on what a record says."""
    stored = StoredRollout(
        {
            "_ng_task_index": 3,
            "_ng_rollout_index": 1,
            "_ng_attempt_index": 2,
            "agent_ref": {"name": "solver"},
            "reward": 1,
            "response": {"output": [{"type": "message"}], "usage": {"input_tokens": 5}},
            "_ng_phases": {"model": 0.5},
            "_ng_seconds": 2.0,
        }
    )

    assert stored.key == RolloutKey(3, 1, 2)
    assert (stored.agent, stored.reward, stored.seconds) == ("solver", 1.0, 2.0)
    assert (stored.output, stored.total_tokens, stored.phases) == ([{"type": "message"}], 5, {"model": 0.5})
    assert (stored.failure_class, stored.is_terminal, stored.is_cancelled) == (None, False, False)


def test_a_failure_has_no_reward_even_if_the_record_has_one():
    """A failed rollout must not enter a mean."""
    stored = StoredRollout({"reward": 1.0, "_ng_failure_class": "timeout", "_ng_failure": {"which": "rollout"}})

    assert stored.reward is None
    assert (stored.failure_class, stored.failure) == ("timeout", {"which": "rollout"})


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "1", [1], 10**400])
def test_a_reward_that_cannot_be_averaged_is_none(reward):
    """One bad value would turn the mean into NaN."""
    assert StoredRollout({"reward": reward}).reward is None


@given(st.dictionaries(st.sampled_from(FIELDS), st.none() | st.integers() | st.text(max_size=3) | st.lists(st.none())))
def test_a_malformed_record_is_read_without_an_error(record):
    """Files of other tools must open in the viewer."""
    stored = StoredRollout(record)

    for name in ("agent", "reward", "failure", "output", "usage", "captured_calls", "phases", "seconds"):
        getattr(stored, name)
