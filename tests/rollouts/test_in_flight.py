"""What is under way, oldest first."""

import pytest

from nemo_gym.rollouts.collect import InFlight
from nemo_gym.rollouts.outcome import Job


def job(task):
    return Job.of({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": f"agent{task}"}})


def test_the_oldest_come_first_with_their_age_and_whom_they_wait_for():
    """A run that hangs at 98 % waits for a server."""
    now = 100.0
    flights = InFlight(clock=lambda: now)

    with flights.sending(job(0)):
        now = 107.0
        with flights.sending(job(1)):
            now = 110.0
            oldest = flights.oldest(5)
            first = flights.oldest(1)
        assert len(flights) == 1

    assert [(str(flight.key), flight.agent, flight.seconds) for flight in oldest] == [
        ("0-0", "agent0", 10.0),
        ("1-0", "agent1", 3.0),
    ]
    assert first == oldest[:1]
    assert oldest[0].waiting_for == "agent agent0"
    assert len(flights) == 0


def test_a_failed_rollout_is_no_longer_in_flight():
    """It would be shown as hanging."""
    flights = InFlight()

    with pytest.raises(OSError, match="gone"), flights.sending(job(0)):
        raise OSError("gone")

    assert flights.oldest(5) == []
