"""The retry budget: pauses grow, stay within bounds, and end."""

import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.net.retry import MODEL_CALL, RetryPolicy, next_pause, parse_retry_after, pause, worth_repeating

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

policies = st.builds(
    RetryPolicy,
    attempts=st.integers(1, 50),
    budget_seconds=st.floats(0, 1000),
    first_pause=st.floats(0.001, 5),
    longest_pause=st.floats(0.001, 60),
)


@given(policies, st.integers(1, 10_000), st.integers())
@settings(max_examples=80, deadline=None)
def test_a_pause_is_never_longer_than_the_longest(policy: RetryPolicy, failures: int, seed: int):
    """Doubling without a cap turns the tenth retry into a lost hour."""
    assert 0 <= pause(policy, failures, random.Random(seed).uniform) <= policy.longest_pause


def test_pauses_double_until_the_cap_and_are_jittered_from_zero():
    """Full jitter: a thousand clients that failed together must not come back together."""
    policy = RetryPolicy(first_pause=1, longest_pause=5)
    asked: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return high

    assert [pause(policy, n, uniform) for n in range(1, 6)] == [1, 2, 4, 5, 5]
    assert all(low == 0 for low, _ in asked)


@given(policies, st.integers())
@settings(max_examples=80, deadline=None)
def test_every_retry_has_an_end_in_attempts_and_in_time(policy: RetryPolicy, seed: int):
    """Nothing may retry for ever: not by count, not by clock."""
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
    policy: RetryPolicy, left: float, asked: float, seed: int
):
    """Waiting past the deadline would only turn a clear error into a late one."""
    wait = next_pause(policy, failures=1, spent=0, left=left, uniform=random.Random(seed).uniform, retry_after=asked)

    assert wait is None or asked <= wait < left


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
    found = parse_retry_after(value, NOW)
    assert found is None or found >= 0


def test_which_answers_are_worth_another_attempt():
    """Servers of ours are believed; model endpoints are known to recover from these."""
    ours, model = RetryPolicy(), MODEL_CALL

    assert not worth_repeating(ours, 503, 1, None)
    assert worth_repeating(ours, 503, 1, 2.0)
    assert not worth_repeating(ours, 500, 1, 2.0)
    assert worth_repeating(model, 429, 30, None)
    assert [worth_repeating(model, 500, n, None) for n in (1, 2, 3)] == [True, True, False]
    assert not worth_repeating(model, 400, 1, None)
