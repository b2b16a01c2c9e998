"""The launcher can see how many rollouts its server processes work on, and how long the others took."""

import mmap
import os

import pytest

from nemo_gym.metrics.latency import BOUNDS
from nemo_gym.metrics.prometheus_text import format_metrics
from nemo_gym.serve.process_status import ProcessStatus, StatusReader
from nemo_gym.serve.run_counts import RunCounts, counting_run, run_metrics


@pytest.fixture
def reader(monkeypatch):
    """The memory of a server process, as its launcher reads it; this process writes it."""
    status, reader = ProcessStatus(), StatusReader()
    status._map(mmap.mmap(reader.fd, os.fstat(reader.fd).st_size))
    monkeypatch.setattr("nemo_gym.serve.run_counts.own_status", status)
    yield reader
    reader.close()


def test_requests_are_counted_from_their_begin_to_their_end(reader):
    """`gym env status` and a monitor show the servers of a trainer, which has no collector of ours."""
    with counting_run():
        during = RunCounts.from_status(reader)
    with pytest.raises(LookupError), counting_run():
        raise LookupError
    after = RunCounts.from_status(reader)

    assert (during.in_flight, during.durations.count) == (1, 0)
    assert (after.in_flight, after.answered, after.failed, after.durations.count) == (0, 1, 1, 2)
    assert after.durations.total >= 0
    assert len(list(after.durations.cumulative())) == len(BOUNDS) + 1


def test_a_process_that_ended_has_failed_its_requests(reader):
    """Else the sum over all processes would have requests in flight for the rest of the run."""
    with counting_run():
        ended = RunCounts.from_status(reader).without_in_flight()
    total = ended + RunCounts.from_status(reader) + RunCounts.from_status(None)

    assert (ended.in_flight, ended.failed) == (0, 1)
    assert (total.in_flight, total.answered, total.failed) == (0, 1, 1)


def test_the_metrics_of_nodes_have_a_label(reader):
    """A slow node must be visible as such."""
    with counting_run():
        page = format_metrics(run_metrics({"node-1": RunCounts.from_status(reader), "node-2": RunCounts()}))

    assert 'nemo_gym_run_requests_in_flight{node="node-1"} 1' in page
    assert 'nemo_gym_run_requests_total{node="node-2",outcome="answered"} 0' in page
    assert 'nemo_gym_run_request_seconds_bucket{node="node-1",le="+Inf"} 0' in page
    assert "nemo_gym_run_requests_in_flight 0" in format_metrics(run_metrics(RunCounts()))
