"""One identity, one text form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.rollout_correlation import maybe_rollout_id_from_run_body
from nemo_gym.wire.stored_rollout import RolloutKey

KEYS = st.builds(RolloutKey, *[st.integers(min_value=0, max_value=2**40)] * 3)


@given(KEYS)
def test_a_key_survives_its_fields(key):
    """Rows carry the identity of their rollout."""
    assert RolloutKey.of(key.fields()) == key


@given(KEYS)
def test_servers_and_collector_call_a_rollout_the_same(key):
    """The capture file is named by the server and looked up by the collector."""
    assert maybe_rollout_id_from_run_body(key.fields()) == str(key)


@pytest.mark.parametrize("value", [None, -1, "0", 1.0, True])
def test_an_index_is_a_whole_number(value):
    """`True` and `1.0` equal 1 in Python and would quietly become another rollout's key."""
    with pytest.raises(ValueError, match="_ng_rollout_index must be a whole number"):
        RolloutKey.of({"_ng_task_index": 0, "_ng_rollout_index": value})
