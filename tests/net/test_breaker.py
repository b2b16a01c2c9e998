"""The circuit breaker as a state machine: same calls at the same times, same states."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.net.breaker import Breaker


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(clock: FakeClock) -> Breaker:
    breaker = Breaker(clock, threshold=3, first_rest=1.0, longest_rest=4.0)
    for _ in range(3):
        assert breaker.admit() == 0
        breaker.failed()
    return breaker


def test_it_opens_after_failures_in_a_row_and_says_how_long_it_rests():
    """Calls to a dead server should fail at once, not after a connect timeout each."""
    clock = FakeClock()
    breaker = opened(clock)

    assert breaker.state == "open"
    clock.now = 0.25
    assert breaker.admit() == 0.75


def test_an_answer_in_between_starts_the_count_anew():
    """A few failures spread over a day are not an outage."""
    breaker = Breaker(FakeClock(), threshold=2)

    for _ in range(5):
        breaker.failed()
        breaker.succeeded()

    assert breaker.state == "closed"


def test_after_the_rest_one_probe_goes_and_the_others_wait():
    """A server that is just coming up must not be met by everybody at once."""
    clock = FakeClock()
    breaker = opened(clock)
    clock.now = 1.0

    assert breaker.admit() == 0
    assert breaker.state == "half-open"
    assert breaker.admit() > 0

    breaker.succeeded()
    assert breaker.state == "closed"
    assert breaker.admit() == 0


def test_failed_probes_double_the_rest_up_to_the_longest():
    clock = FakeClock()
    breaker = opened(clock)
    rests = []
    for _ in range(4):
        clock.now += breaker.admit() or 0
        assert breaker.admit() == 0
        breaker.failed()
        rests.append(breaker.admit())

    assert rests == [2.0, 4.0, 4.0, 4.0]


def test_a_cancelled_probe_lets_the_next_one_go():
    """Otherwise one cancelled rollout would close an endpoint for ever."""
    clock = FakeClock()
    breaker = opened(clock)
    clock.now = 1.0
    assert breaker.admit() == 0

    breaker.abandoned()

    assert breaker.admit() == 0


@given(st.lists(st.sampled_from(["admit", "failed", "succeeded", "abandoned", "tick"]), max_size=60))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_a_success_closes_it_and_no_rest_exceeds_the_longest(steps: list[str]):
    """No history may leave an endpoint locked out."""
    clock = FakeClock()
    breaker = Breaker(clock, threshold=2, first_rest=1.0, longest_rest=4.0)
    for step in steps:
        if step == "tick":
            clock.now += 0.7
        elif step == "admit":
            assert 0 <= breaker.admit() <= 4.0
        else:
            getattr(breaker, step)()

    clock.now += 4.0
    breaker.abandoned()
    assert breaker.admit() == 0
    breaker.succeeded()
    assert breaker.state == "closed"
