"""One identity, one text form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.rollout_correlation import maybe_rollout_id_from_run_body
from nemo_gym.wire.stored_rollout import RolloutKey

KEYS = st.builds(RolloutKey, *[st.integers(min_value=0, max_value=2**40)] * 3)


@given(KEYS)
def test_a_key_survives_its_text_form_and_its_fields(key):
    """URLs, capture files and rows carry the same identity."""
    assert RolloutKey.parse(str(key)) == key
    assert RolloutKey.of(key.fields()) == key


@given(KEYS)
def test_servers_and_collector_call_a_rollout_the_same(key):
    """The capture file is named by the server and looked up by the collector."""
    assert maybe_rollout_id_from_run_body(key.fields()) == str(key)


@pytest.mark.parametrize("text", ["", "1", "1-", "-1-2", "1-2-a0", "1-2-a", "1-2-3", "a-b", "1-2 ", "1-٢"])
def test_what_is_not_a_key_is_refused(text):
    """A guessed key would be another rollout's."""
    with pytest.raises(ValueError, match="is not of the form"):
        RolloutKey.parse(text)


@pytest.mark.parametrize("value", [None, -1, "0", 1.0, True])
def test_an_index_is_a_whole_number(value):
    """`True` and `1.0` equal 1 in Python and would quietly become another rollout's key."""
    with pytest.raises(ValueError, match="_ng_rollout_index must be a whole number"):
        RolloutKey.of({"_ng_task_index": 0, "_ng_rollout_index": value})
