"""Failures that repeat are counted in the log, and different ones are all there."""

import logging

import pytest

from nemo_gym.serve.repeated_failures import MAX_CAUSES, FailureLog


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="nemo_gym.serve")
    return caplog


def test_a_cause_is_one_line_and_then_a_count(log_lines: pytest.LogCaptureFixture) -> None:
    """A program that repeats a refused call a thousand times must not fill the disk."""
    log = FailureLog()

    for _ in range(1000):
        log.report(logging.WARNING, "m: POST /v1/messages: 400: no such block", "\nstack")

    first, *counts = log_lines.messages
    assert first == "m: POST /v1/messages: 400: no such block\nstack"
    assert [message.split("(")[1].split(" of")[0] for message in counts] == [f"failure {10**n}" for n in (1, 2, 3)]
    assert not any("stack" in message for message in counts)


def test_numbers_and_ids_of_calls_are_no_other_cause(log_lines: pytest.LogCaptureFixture) -> None:
    """Every call of a rollout has a longer prompt and every rollout another path; the cause is the same."""
    log = FailureLog()

    for number in range(9):
        path = f"/ng-rollout/{number}-0/budget/00ab{number}00000000000-c0-s2/v1/responses"
        log.report(logging.ERROR, f"m: POST {path} failed: {100 + number} tokens in request req_{number}f31")

    assert len(log_lines.messages) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://a:8000/v1/responses answered 500: full", "http://a:8001/v1/responses answered 500: full"),
        ("http://a:8000/v1/responses answered 500: full", "http://a:8000/v1/responses answered 503: full"),
        ("KeyError: 'x' (env/app.py:12)", "KeyError: 'x' (env/app.py:21)"),
        ("messages: required", "tools: required"),
    ],
)
def test_other_endpoints_statuses_lines_and_fields_are_other_causes(
    one: str, other: str, log_lines: pytest.LogCaptureFixture
) -> None:
    """A second defect behind the first one has to be visible."""
    log = FailureLog()

    for text in (one, other, one, other):
        log.report(logging.ERROR, text)

    assert log_lines.messages == [one, other]


def test_the_counts_of_many_causes_are_bounded(log_lines: pytest.LogCaptureFixture) -> None:
    """A server runs for days, and a client may fail in a new way each time."""
    log = FailureLog()
    causes = ["".join(chr(97 + int(digit)) for digit in f"{number:04}") for number in range(2 * MAX_CAUSES)]

    for cause in causes:
        log.report(logging.ERROR, cause)
    log.report(logging.ERROR, causes[-1])
    log.report(logging.ERROR, causes[0])

    assert log_lines.messages == [*causes, causes[0]]
    assert len(log._counts) == MAX_CAUSES
