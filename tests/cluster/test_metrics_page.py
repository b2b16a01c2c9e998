"""The library of Prometheus reads our page: it comes with Ray."""

from prometheus_client.parser import text_string_to_metric_families

from nemo_gym.metrics.latency import LatencyHistogram
from nemo_gym.metrics.prometheus_text import MetricFamily, format_metrics


def test_the_library_of_prometheus_reads_the_page():
    """It reads what any scraper reads."""
    histogram = LatencyHistogram()
    histogram.add(2.0)
    families = [MetricFamily("a_seconds", "histogram", "Times.", [({"n": 'a"b\n'}, histogram)])]

    (family,) = text_string_to_metric_families(format_metrics(families))

    assert family.type == "histogram"
    assert {sample.value for sample in family.samples if sample.name == "a_seconds_sum"} == {2.0}
    assert all(sample.labels["n"] == 'a"b\n' for sample in family.samples)
