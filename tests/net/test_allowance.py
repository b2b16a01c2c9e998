"""What one rollout may use, from the collector's header to the call it bounds."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.net import allowance, deadline
from nemo_gym.net.allowance import Allowance, ModelCallTimeout, ToolCallTimeout, VerifyTimeout

SECONDS = st.none() | st.floats(min_value=0.001, max_value=1e6)
COUNT = st.none() | st.integers(1, 10**12)


@given(st.builds(Allowance, SECONDS, SECONDS, SECONDS, COUNT, COUNT))
@settings(max_examples=60, deadline=None)
def test_what_is_sent_is_what_is_read(allowed):
    read = allowance.from_header(allowed.header_value().encode())

    assert (read or Allowance()) == allowed


@given(st.text(max_size=40) | st.binary(max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_header_nobody_can_read_ends_no_request(text):
    read = allowance.from_header(text)

    assert read is None or isinstance(read, Allowance)


@pytest.mark.parametrize("text", ["steps=-1", "steps=0", "steps=inf", "tokens=nan", "steps=x", "mode=fast"])
def test_nonsense_is_no_limit(text):
    assert allowance.from_header(text) == Allowance()


ALLOWED = Allowance(model_call_seconds=0.01, tool_call_seconds=0.02, verify_seconds=0.03)


@pytest.mark.parametrize(
    ("server_type", "path", "kind", "seconds"),
    [
        ("responses_api_models", "/v1/responses", ModelCallTimeout, 0.01),
        ("resources_servers", "/get_weather", ToolCallTimeout, 0.02),
        ("resources_servers", "/seed_session", ToolCallTimeout, 0.02),
        ("resources_servers", "/verify", VerifyTimeout, 0.03),
    ],
)
def test_each_kind_of_call_has_its_time_and_its_name(server_type, path, kind, seconds):
    with allowance.using(ALLOWED), pytest.raises(kind, match="late") as caught, allowance.held(server_type, path):
        left = deadline.remaining()
        assert left is not None
        assert left <= seconds
        end = time.monotonic() + left
        while time.monotonic() <= end:  # the clock of the limit itself has to pass
            time.sleep(0.001)
        raise DeadlineExceeded("late", where="m", fix="wait")

    assert caught.value.where == "m"
    assert caught.value.fix == f"raise {kind.setting}, or find out why it is slow"


def test_calls_to_agents_and_calls_outside_rollouts_are_not_bounded_here():
    with allowance.using(ALLOWED), allowance.held("responses_api_agents", "/run"):
        assert deadline.remaining() is None
    with allowance.held("responses_api_models", "/v1/responses"):
        assert deadline.remaining() is None


def test_a_rollout_that_ends_sooner_keeps_its_own_end_and_name():
    """'The model call timed out' would be wrong when it was the rollout's time that was over."""
    with (
        allowance.using(Allowance(model_call_seconds=100)),
        deadline.within(5),
        pytest.raises(DeadlineExceeded) as caught,
        allowance.held("responses_api_models", "/v1/responses"),
    ):
        raise DeadlineExceeded("late")

    assert type(caught.value) is DeadlineExceeded


def test_another_error_passes_as_it_is():
    with allowance.using(ALLOWED), pytest.raises(ZeroDivisionError), allowance.held("resources_servers", "/verify"):
        raise ZeroDivisionError


class Usage:
    def __init__(self, total_tokens):
        self.total_tokens = total_tokens


def test_an_agent_learns_which_limit_it_has_reached():
    assert allowance.reached(steps=10**9, usages=[]) is None
    with allowance.using(Allowance(steps=3, tokens=100)):
        assert allowance.reached(steps=2, usages=[Usage(99), None]) is None
        assert allowance.reached(steps=3, usages=[]) == "steps"
        assert allowance.reached(steps=1, usages=[Usage(50), Usage(50)]) == "tokens"
