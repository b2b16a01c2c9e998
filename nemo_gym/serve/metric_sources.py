"""The metrics that the head server of this process shows at `/metrics`; parts of the process register their own."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from nemo_gym.metrics.prometheus_text import MetricFamily, format_metrics

MetricSource = Callable[[], Iterable[MetricFamily]]

_sources: list[MetricSource] = []


@contextmanager
def showing_metrics(source: MetricSource) -> Iterator[None]:
    """Show the metrics of a source while the block runs."""
    _sources.append(source)
    try:
        yield
    finally:
        _sources.remove(source)


def metrics_page(more: Iterable[MetricFamily] = ()) -> str:
    """Return the current metrics of all sources, and `more`, as the text that Prometheus reads."""
    return format_metrics([*(family for source in _sources for family in source()), *more])
