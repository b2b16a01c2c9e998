"""The page of `/metrics` is what Prometheus reads."""

from nemo_gym.cli.shared.progress_metrics import progress_metrics
from nemo_gym.cli.terminal.progress import Progress
from nemo_gym.metrics.latency import LatencyHistogram
from nemo_gym.metrics.prometheus_text import MetricFamily, format_metrics
from nemo_gym.rollouts.dispatch import NodeStatistics
from nemo_gym.rollouts.outcome import FailedRollout, Failure, Job, ScoredRollout


def job(number):
    return Job.of({"_ng_task_index": number, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})


def test_values_labels_and_buckets_are_written_as_the_format_asks():
    """A scraper drops the whole page for one malformed line."""
    histogram = LatencyHistogram()
    for seconds in (0.005, 0.2, 99999.0):
        histogram.add(seconds)
    families = [
        MetricFamily("a_total", "counter", "Two\nlines.", [({"x": 'q"\\'}, 1234567.0)]),
        MetricFamily("b_seconds", "histogram", "Times.", [({"n": "1"}, histogram)]),
        MetricFamily("c", "gauge", "Nothing.", []),
    ]

    lines = format_metrics(families).splitlines()

    assert lines[:3] == ["# HELP a_total Two\\nlines.", "# TYPE a_total counter", 'a_total{x="q\\"\\\\"} 1234567']
    assert 'b_seconds_bucket{n="1",le="0.01"} 1' in lines
    assert 'b_seconds_bucket{n="1",le="0.3"} 2' in lines
    assert 'b_seconds_bucket{n="1",le="+Inf"} 3' in lines
    assert 'b_seconds_count{n="1"} 3' in lines
    assert not [line for line in lines if line.startswith("c") or " c " in line]


def test_a_run_shows_outcomes_and_nodes():
    """Dashboards tell failed rollouts from scored ones, and slow nodes from fast ones."""
    progress = Progress()
    progress(ScoredRollout(job(0), {"reward": 1.0, "_ng_seconds": 0.5, "response": {"usage": {"total_tokens": 7}}}))
    progress(FailedRollout(job(1), Failure("timeout", "model", "slow", "m")))
    node = NodeStatistics("node-1", outcomes=2, in_flight=3)
    node.latency.add(0.5)
    progress.nodes = lambda: [node]

    page = format_metrics(progress_metrics(progress))

    assert 'nemo_gym_rollouts_total{outcome="scored",kind=""} 1' in page
    assert 'nemo_gym_rollouts_total{outcome="failed",kind="timeout"} 1' in page
    assert "nemo_gym_tokens_total 7" in page
    assert 'nemo_gym_node_rollouts_in_flight{node="node-1"} 3' in page
    assert "nemo_gym_rollout_seconds_count 1" in page


def test_quantiles_lie_in_their_bucket():
    """The report shows them as the latency of a node."""
    histogram = LatencyHistogram()
    assert histogram.quantile(0.5) is None
    assert histogram.mean is None
    for _ in range(100):
        histogram.add(0.5)
    assert 0.3 < histogram.quantile(0.5) <= 1.0
    histogram.add(1e9)
    assert histogram.quantile(1.0) == 3600.0
