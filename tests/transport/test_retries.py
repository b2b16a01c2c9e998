"""Retry policy and circuit breaker: bounded attempts, growing pauses, periodic probes."""

import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.transport.retries import (
    MODEL_CALL,
    CircuitBreaker,
    RetryPolicy,
    jittered_pause,
    next_pause,
    parse_retry_after,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

policies = st.builds(
    RetryPolicy,
    attempts=st.integers(1, 50),
    budget_seconds=st.floats(0, 1000),
    first_pause=st.floats(0.001, 5),
    max_pause=st.floats(0.001, 60),
)


@given(policies, st.integers(1, 10_000), st.integers())
@settings(max_examples=80, deadline=None)
def test_a_pause_is_never_longer_than_the_longest(policy: RetryPolicy, failures: int, seed: int):
    """Doubling without a cap turns the tenth retry into a lost hour."""
    assert 0 <= jittered_pause(policy, failures, random.Random(seed).uniform) <= policy.max_pause


def test_pauses_double_until_the_cap_and_are_jittered_from_zero():
    """Full jitter: a thousand clients that failed together must not come back together."""
    policy = RetryPolicy(first_pause=1, max_pause=5)
    bounds: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        bounds.append((low, high))
        return high

    assert [jittered_pause(policy, n, uniform) for n in range(1, 6)] == [1, 2, 4, 5, 5]
    assert all(low == 0 for low, _ in bounds)


@given(policies, st.integers())
@settings(max_examples=80, deadline=None)
def test_every_retry_has_an_end_in_attempts_and_in_time(policy: RetryPolicy, seed: int):
    """Retries are bounded by count and by time."""
    uniform = random.Random(seed).uniform
    spent, sent = 0.0, 1
    while (wait := next_pause(policy, failures=sent, spent=spent, left=None, uniform=uniform)) is not None:
        spent += wait
        sent += 1

    assert sent <= policy.attempts
    assert spent <= policy.budget_seconds


@given(policies, st.floats(0, 100), st.floats(0, 100), st.integers())
@settings(max_examples=80, deadline=None)
def test_no_pause_reaches_the_deadline_and_retry_after_is_honoured(
    policy: RetryPolicy, left: float, retry_after: float, seed: int
):
    """Waiting past the deadline would only turn a clear error into a late one."""
    wait = next_pause(
        policy, failures=1, spent=0, left=left, uniform=random.Random(seed).uniform, retry_after=retry_after
    )

    assert wait is None or retry_after <= wait < left


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("９", None),
        ("9" * 5000, float("inf")),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0),
        ("Wed, 99 Foo 2026 99:99:99 GMT", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(value: str | None, expected: float | None):
    """Providers send both forms; garbage must not break the call."""
    assert parse_retry_after(value, NOW) == expected


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_no_retry_after_header_can_raise(value: str):
    """A malformed header of a proxy must not fail the call that it asks to repeat."""
    seconds = parse_retry_after(value, NOW)
    assert seconds is None or seconds >= 0


def test_which_answers_are_worth_another_attempt():
    """Servers of ours are believed; model endpoints are known to recover from these."""
    ours, model = RetryPolicy(), MODEL_CALL

    assert not ours.retries_status(503, 1, None)
    assert ours.retries_status(503, 1, 2.0)
    assert not ours.retries_status(500, 1, 2.0)
    assert model.retries_status(429, 30, None)
    assert [model.retries_status(500, n, None) for n in (1, 2, 3)] == [True, True, False]
    assert not model.retries_status(400, 1, None)


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def open_breaker(clock: FakeClock) -> CircuitBreaker:
    breaker = CircuitBreaker(clock, threshold=3, first_open_seconds=1.0, max_open_seconds=4.0)
    for _ in range(3):
        assert breaker.admit() == 0
        breaker.report_failure()
    return breaker


def test_it_opens_after_failures_in_a_row_and_says_how_long_it_rests():
    """Calls to a dead server should fail at once, not after a connect timeout each."""
    clock = FakeClock()
    breaker = open_breaker(clock)

    assert breaker.state == "open"
    clock.now = 0.25
    assert breaker.admit() == 0.75


def test_an_answer_in_between_starts_the_count_anew():
    """A few failures spread over a day are not an outage."""
    breaker = CircuitBreaker(FakeClock(), threshold=2)

    for _ in range(5):
        breaker.report_failure()
        breaker.report_success()

    assert breaker.state == "closed"


def test_after_the_rest_one_probe_goes_and_the_others_wait():
    """A server that is just coming up must not get every call at once."""
    clock = FakeClock()
    breaker = open_breaker(clock)
    clock.now = 1.0

    assert breaker.admit() == 0
    assert breaker.state == "half-open"
    assert breaker.admit() > 0

    breaker.report_success()
    assert breaker.state == "closed"
    assert breaker.admit() == 0


def test_failed_probes_double_the_rest_up_to_the_longest():
    """A server that is down for long is not flooded, and its return is still noticed soon."""
    clock = FakeClock()
    breaker = open_breaker(clock)
    rests = []
    for _ in range(4):
        clock.now += breaker.admit() or 0
        assert breaker.admit() == 0
        breaker.report_failure()
        rests.append(breaker.admit())

    assert rests == [2.0, 4.0, 4.0, 4.0]


def test_a_cancelled_probe_lets_the_next_one_go():
    """Otherwise one cancelled rollout would close an endpoint until the end of the run."""
    clock = FakeClock()
    breaker = open_breaker(clock)
    clock.now = 1.0
    assert breaker.admit() == 0

    breaker.report_abandoned()

    assert breaker.admit() == 0


@given(
    st.lists(st.sampled_from(["admit", "report_failure", "report_success", "report_abandoned", "tick"]), max_size=60)
)
@settings(max_examples=100, deadline=None)
def test_whatever_happens_a_success_closes_it_and_no_rest_exceeds_the_longest(steps: list[str]):
    """No history may leave an endpoint locked out."""
    clock = FakeClock()
    breaker = CircuitBreaker(clock, threshold=2, first_open_seconds=1.0, max_open_seconds=4.0)
    for step in steps:
        if step == "tick":
            clock.now += 0.7
        elif step == "admit":
            assert 0 <= breaker.admit() <= 4.0
        else:
            getattr(breaker, step)()

    clock.now += 4.0
    breaker.report_abandoned()
    assert breaker.admit() == 0
    breaker.report_success()
    assert breaker.state == "closed"
