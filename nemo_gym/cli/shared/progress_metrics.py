"""The metrics of a running collection, for `/metrics` of its head server."""

from nemo_gym.cli.terminal.progress import Progress
from nemo_gym.metrics.prometheus_text import MetricFamily, Values


def progress_metrics(progress: Progress) -> list[MetricFamily]:
    """Return the metrics of a collection, and of its nodes if it runs on several machines."""
    tally, queue_length, nodes = progress.tally, progress.queue_length, progress.nodes()
    outcomes = [
        ({"outcome": "scored", "kind": ""}, float(tally.scored)),
        *(({"outcome": "failed", "kind": kind}, float(count)) for kind, count in sorted(tally.failed.items())),
        *(({"outcome": "limit", "kind": kind}, float(count)) for kind, count in sorted(tally.limits.items())),
        ({"outcome": "cancelled", "kind": ""}, float(tally.cancelled)),
    ]
    in_flight: Values = [({}, float(len(progress.in_flight)))]
    queued: Values = [] if queue_length is None else [({}, float(queue_length))]
    by_node = [({"node": node.name}, node) for node in nodes]
    return [
        MetricFamily("nemo_gym_rollouts_total", "counter", "Rollouts that ended, by outcome.", outcomes),
        MetricFamily("nemo_gym_rollouts_in_flight", "gauge", "Rollouts in flight.", in_flight),
        MetricFamily("nemo_gym_rollouts_queued", "gauge", "Planned rollouts that were not sent yet.", queued),
        MetricFamily("nemo_gym_tokens_total", "counter", "Tokens of all rollouts.", [({}, float(progress.tokens))]),
        MetricFamily(
            "nemo_gym_rollout_seconds", "histogram", "Duration of scored rollouts.", [({}, progress.durations)]
        ),
        MetricFamily(
            "nemo_gym_node_rollouts_total",
            "counter",
            "Rollouts that ended on a node.",
            [(labels, float(node.outcomes)) for labels, node in by_node],
        ),
        MetricFamily(
            "nemo_gym_node_rollouts_in_flight",
            "gauge",
            "Rollouts in flight on a node.",
            [(labels, float(node.in_flight)) for labels, node in by_node],
        ),
        MetricFamily(
            "nemo_gym_node_rollout_seconds",
            "histogram",
            "Time from the lease of a rollout to its outcome.",
            [(labels, node.latency) for labels, node in by_node],
        ),
    ]
